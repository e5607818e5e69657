"""Settings of single rows, and values of flags given as texts."""

from collections.abc import Iterable, Sequence

from absl import flags

from dble_tf.errors import UserError

from ..settings import choices
from ..settings import experiment
from .rows import ROWS

# Rows, seeds and places, and the data: figures of other images cannot be compared.
_SHARED = {
    'method', 'seed', 'experiment', 'dataset', 'data_dir', 'validation_size',
    'threshold_size', 'train_size', 'split_seed'}


def require_settings(flag: str, swept: Iterable[str], names: Sequence[str]) -> None:
  """Refuses flags that the runs of a table have to share, or that are no settings.

  Args:
    flag: the flag that names them, for the message.
    swept: their names.
    names: of the flags that are settings of a run.
  """
  for name in swept:
    if name not in names or name in _SHARED:
      raise UserError(
          f'--{flag} cannot vary "{name}": it takes settings of a run, such as '
          'label_smoothing or learning_rate.')


def parsed(
    flag: str, values: flags.FlagValues, texts: Iterable[tuple[str, str]]
) -> dict[str, object]:
  """Flags with their values instead of texts, as their own parsers have them."""
  found = {}
  for name, text in texts:
    try:
      found[name] = values[name].parser.parse(text)
      experiment.changed(values, **{name: found[name]})  # Asks the flag's validators.
    except (ValueError, TypeError, flags.Error) as error:
      raise UserError(f'--{flag}: --{name}={text} is not possible: {error}') from error
  return found


def check(values: flags.FlagValues, names: Sequence[str]) -> None:
  """Refuses a --tuned that cannot be, before anything is trained."""
  if values.tuned and values.sweep is not None:
    raise UserError(
        '--tuned is for tables: give a sweep its settings as flags of their own.')
  for text in values.tuned:
    row, pairs = _split(text)
    if row not in ROWS or not pairs or not all(len(pair) == 2 for pair in pairs):
      raise UserError(
          f'--tuned={text} is not of the form method:flag=value, such as '
          '--tuned=vanilla:learning_rate=0.2')
    require_settings('tuned', [name for name, _ in pairs], names)
  for row in ROWS:
    settings(values, row)


def settings(values: flags.FlagValues, row: str) -> dict[str, object]:
  """The settings of --tuned for a row, also those of the row whose network it takes.

  Args:
    values: the flags of the comparison.
    row: a key of `ROWS`.
  """
  method = ROWS[row].get('method', row)
  applied = (choices.METHODS[method].base, method, row)
  return parsed('tuned', values, [
      pair for text in values.tuned for name, pairs in [_split(text)]
      if name in applied for pair in pairs])


def _split(text):
  """'row:flag=value+flag=value' -> row and pairs."""
  row, _, assignments = text.partition(':')
  return row, [tuple(part.split('=', 1)) for part in assignments.split('+') if part]
