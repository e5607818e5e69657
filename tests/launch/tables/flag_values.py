"""Flags of a comparison, without its command."""

from absl import flags

from launch.settings import devices
from launch.settings import experiment


def parse(*arguments: str) -> tuple[flags.FlagValues, list[str]]:
  """The flags, and the names of those that are settings of a run."""
  values = flags.FlagValues()
  names = experiment.define_flags(values)
  devices.define_flags(values)
  flags.DEFINE_list('methods', ['all'], '', flag_values=values)
  flags.DEFINE_integer('seeds', 3, '', flag_values=values)
  flags.DEFINE_string('sweep', None, '', flag_values=values)
  flags.DEFINE_multi_string('tuned', [], '', flag_values=values)
  flags.DEFINE_string('workdir', None, '', flag_values=values)
  values(['test', '--dataset=digits', *arguments])
  return values, names
