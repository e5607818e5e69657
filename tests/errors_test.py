
from dble_tf import errors


def test_a_user_error_is_a_value_error():
  try:
    raise errors.UserError('use fewer ways')
  except ValueError as error:
    assert str(error) == 'use fewer ways'


def test_the_first_line_of_an_error_without_a_message_is_its_type():
  assert errors.first_line(OSError('\n no space\nat line 3')) == 'no space'
  assert errors.first_line(KeyError()) == 'KeyError'
