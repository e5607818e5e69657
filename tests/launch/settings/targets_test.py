import pytest
from absl import flags

from launch.settings import targets


def parse(*arguments):
  values = flags.FlagValues()
  targets.define_flags(values)
  values(['test', *arguments])
  return values


def test_there_is_no_target_unless_given():
  assert (parse().target_risk, parse().target_coverage) == (None, None)
  assert parse('--target_risk=0.01').target_risk == 0.01
  assert not targets.are_given(parse())
  assert targets.are_given(parse('--target_risk=0.01'))
  assert targets.are_given(parse('--target_coverage=0.9'))


@pytest.mark.parametrize('argument', ['--target_risk=1.5', '--target_coverage=-0.1'])
def test_shares_are_between_0_and_1(argument):
  with pytest.raises(flags.IllegalFlagValueError):
    parse(argument)
