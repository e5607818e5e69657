import pytest
from absl import flags

from launch.settings import devices


def parse(*arguments):
  values = flags.FlagValues()
  devices.define_flags(values)
  values(['test', *arguments])
  return values


def test_flags_that_were_given_can_be_given_to_another_command():
  assert devices.arguments(parse()) == []
  given = ['--strategy=mirrored', '--num_virtual_devices=2']
  assert devices.arguments(parse(*given)) == given


@pytest.mark.parametrize('argument', [
    '--strategy=multi_worker', '--num_virtual_devices=0', '--jit_compile=maybe'])
def test_nonsense_values_are_rejected(argument):
  with pytest.raises(flags.IllegalFlagValueError):
    parse(argument)
