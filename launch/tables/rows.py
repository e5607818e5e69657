"""The rows of a comparison, each a run, and the lines that tables show of them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from absl import flags

from dble_tf.errors import UserError

# Row -> the settings by which its runs differ from the method of the row's own name.
# Bases come before the methods that take their networks.
ROWS = {
    'vanilla': {},
    'mc_dropout': {},
    'label_smoothing': {},
    'mixup': {},
    'trust_score': {},
    'vanilla_errors': {},
    'prototypical': {},
    'dble_all': {'method': 'dble', 'confidence_training': 'all'},
    'dble': {},
    'deep_ensemble': {},
}
ENSEMBLES = ('deep_ensemble',)
_OF_DBLE = ('prototypical', 'dble_all', 'dble')


class Line(NamedTuple):
  """A line of a table, made of a row's runs.

  Attributes:
    row: a key of `ROWS`.
    title: in the first column, with the method's own settings in braces.
    part: the suffix of the probabilities in predictions.npz; None for those without.
    has_temperature: whether a temperature, fitted on validation images, is applied.
  """

  row: str
  title: str
  part: str | None = None
  has_temperature: bool = False

  @property
  def is_single(self) -> bool:
    return self.row not in ENSEMBLES

  @property
  def is_of_dble(self) -> bool:
    return self.row in _OF_DBLE

  def full_title(self, values: flags.FlagValues) -> str:
    """The title with the settings of the flags."""
    title = self.title.format(values=values, episode=_episode(values))
    return f'{title} + T' if self.has_temperature else title


def _both(name, *arguments):
  """A line as trained, and one with a temperature."""
  line = Line(*arguments)
  return {name: line, f'{name}+T': line._replace(has_temperature=True)}


LINES = {
    **_both('vanilla', 'vanilla', 'vanilla training'),
    **_both('mc_dropout', 'mc_dropout',
            'MC-dropout (on the representation, rate {values.dropout})'),
    **_both('label_smoothing', 'label_smoothing',
            'label smoothing ({values.label_smoothing})'),
    **_both('mixup', 'mixup', 'mixup (alpha {values.mixup_alpha})'),
    'trust_score': Line(
        'trust_score', 'TrustScore (sparse share {values.sparse_share})'),
    'vanilla_errors': Line(
        'vanilla_errors', 'vanilla training, confidence learned from errors'),
    **_both('prototypical', 'prototypical', 'prototypical ({episode})'),
    **_both('dble_prototypical', 'dble',
            "prototypical (DBLE's encoder; {episode})", 'prototypical'),
    'dble_all': Line(
        'dble_all', 'DBLE, sigma as printed, learned from all queries ({episode})',
        'as_printed'),
    'dble_as_printed': Line('dble', 'DBLE, sigma as printed ({episode})', 'as_printed'),
    'dble_no_held_out': Line(
        'dble', 'DBLE, no held-out data ({episode})', 'without_held_out'),
    'dble': Line('dble', 'DBLE ({episode})'),
    **_both('deep_ensemble', 'deep_ensemble',
            'deep ensemble (of {values.ensemble_size})'),
}
# Table 1 and Table 2 of the paper.
GROUPS = {
    'all': ['vanilla', 'mc_dropout', 'label_smoothing', 'mixup', 'trust_score', 'dble',
            'deep_ensemble'],
    'ablation': ['vanilla', 'vanilla_errors', 'dble_all', 'dble'],
}
_ABLATION = (
    'vanilla', 'vanilla_errors', 'dble_all', 'dble_as_printed', 'dble_no_held_out')


def requested(names: Sequence[str]) -> list[str]:
  """The rows of --methods, each once, in the order of `ROWS`."""
  rows = {row for name in names for row in GROUPS.get(name, [name])}
  unknown = sorted(rows - set(ROWS))
  if unknown or not rows:
    raise UserError(
        f'Unknown method "{", ".join(unknown)}": --methods takes '
        f'{", ".join([*GROUPS, *ROWS])}.')
  return [row for row in ROWS if row in rows]


def is_ablation(values: flags.FlagValues) -> bool:
  """True for the table of `--methods=ablation`, which has lines of its own."""
  return values.methods == ['ablation']


def lines(values: flags.FlagValues, rows: Iterable[str]) -> dict[str, Line]:
  """The lines of these rows in a table of these flags, in order.

  Without validation images there are no temperatures.
  """
  names = _ABLATION if is_ablation(values) else LINES
  can_fit = has_validation(values)
  return {name: LINES[name] for name in names if LINES[name].row in rows
          and (can_fit or not LINES[name].has_temperature)}


def has_validation(values: flags.FlagValues) -> bool:
  """True if the runs hold images out for validation."""
  return values.validation_size > (values.threshold_size or 0)


def _episode(values):
  """An episode in words and, where not as printed, its distances and targets."""
  shots, queries = values.num_shots, values.num_queries
  if values.episode == 'leave_one_out':
    text = f'leave-one-out, {shots + queries} images a class'
  else:
    text = (f'{shots} support{"s" if shots > 1 else ""} + {queries} '
            f'{"queries" if queries > 1 else "query"}')
  if values.episodes_per_step > 1:
    text += f', {values.episodes_per_step} episodes'
  if values.squared_scale:
    text += f', squared distances times {values.squared_scale}'
  if values.episode_smoothing:
    text += f', targets smoothed by {values.episode_smoothing}'
  return text
