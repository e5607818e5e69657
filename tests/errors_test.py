import pytest

from dble_tf import errors


def test_a_user_error_is_a_value_error_to_those_who_expect_one():
  try:
    raise errors.UserError('use fewer ways')
  except ValueError as error:
    assert str(error) == 'use fewer ways'


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
