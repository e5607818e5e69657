"""The flags of abstention: which answers an export accepts."""

from absl import flags

from ..cli.groups import group


def define_flags(values: flags.FlagValues) -> None:
  """Defines --target_risk and --target_coverage."""
  with group('abstention', values):
    flags.DEFINE_float(
        'target_risk', None, 'Highest error rate among accepted answers on the images '
        'of --threshold_size, such as 0.01. Without a target the export accepts all '
        'answers.',
        lower_bound=0, upper_bound=1, flag_values=values)
    flags.DEFINE_float(
        'target_coverage', None, 'Instead of --target_risk: lowest share of answers '
        'that are accepted.', lower_bound=0, upper_bound=1, flag_values=values)


def are_given(values: flags.FlagValues) -> bool:
  """True if there is a target."""
  return values.target_risk is not None or values.target_coverage is not None
