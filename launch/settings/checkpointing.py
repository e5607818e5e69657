"""The flags of checkpoints and profiles, which do not change a run's outcome."""

import re

from absl import flags

from ..cli.groups import group

_INTERVAL = re.compile(r'(?P<steps>[1-9]\d*)steps|(?P<minutes>\d+(\.\d+)?)min')


def define_flags(values: flags.FlagValues) -> None:
  """Defines --checkpoint_every and --profile_steps."""
  with group('run', values):
    flags.DEFINE_list(
        'checkpoint_every', ['10min'], 'Interval of checkpoints, besides one after '
        'each epoch, such as 10min, 500steps or 10min,500steps.', flag_values=values)
    flags.DEFINE_list(
        'profile_steps', [], 'First and last step to profile for TensorBoard, such as '
        '10,20, counted from the start of this process.', flag_values=values)
  flags.register_validator(
      'checkpoint_every', _are_intervals,
      'give minutes, steps or both, such as --checkpoint_every=10min,500steps',
      flag_values=values)
  flags.register_validator(
      'profile_steps', _are_steps, 'give the first and the last step, such as '
      '--profile_steps=10,20', flag_values=values)


def every(texts: list[str]) -> tuple[int | None, float | None]:
  """Steps and seconds between checkpoints, None each where not given.

  >>> every(['10min', '500steps'])
  (500, 600.0)
  """
  numbers = {}
  for text in texts:
    numbers.update({unit: number for unit, number in
                    _INTERVAL.fullmatch(text).groupdict().items() if number})
  return (int(numbers['steps']) if 'steps' in numbers else None,
          60.0 * float(numbers['minutes']) if 'minutes' in numbers else None)


def _are_intervals(texts):
  return all(map(_INTERVAL.fullmatch, texts)) and every(texts)[1] != 0


def _are_steps(texts):
  return not texts or (
      len(texts) == 2 and all(text.isdecimal() for text in texts)
      and 0 < int(texts[0]) <= int(texts[1]))
