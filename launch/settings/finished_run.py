"""The flags of commands that work on a finished run."""

from absl import flags

from ..cli.groups import group


def define_flags(values: flags.FlagValues) -> None:
  """Defines --workdir, without which the command refuses to run, and --data_dir."""
  with group('run', values):
    flags.DEFINE_string('workdir', None, 'Directory of the run.', flag_values=values)
  with group('data', values):
    flags.DEFINE_string(
        'data_dir', None, "Directory of TFDS' data sets, if the data have moved since.",
        flag_values=values)
  flags.register_validator(
      'workdir', lambda workdir: workdir is not None,
      'give the directory of a finished run, such as --workdir=runs/digits',
      flag_values=values)
