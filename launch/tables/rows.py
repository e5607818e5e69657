"""The rows that a table of methods can have."""

from collections.abc import Sequence
from typing import NamedTuple

from dble_tf.errors import UserError


class Row(NamedTuple):
  """A method as a table shows it.

  Attributes:
    title: in the first column.
    settings: by which its runs differ from the method of the row's own name.
    is_single: False for an ensemble.
  """

  title: str
  settings: dict[str, str | bool] = {}
  is_single: bool = True


_AS_PRINTED = {
    'method': 'dble', 'scaling': 'none', 'normalize_confidence_input': False}

ROWS = {
    'vanilla': Row('vanilla training'),
    'mc_dropout': Row('MC-dropout'),
    'temperature_scaling': Row('temperature scaling'),
    'label_smoothing': Row('label smoothing'),
    'mixup': Row('mixup'),
    'trust_score': Row('TrustScore'),
    'vanilla_errors': Row('vanilla training, confidence learned from errors'),
    'prototypical': Row('DBLE without confidence model'),
    'dble_all': Row('DBLE as printed, confidence learned from all queries',
                    {**_AS_PRINTED, 'confidence_training': 'all'}),
    'dble_errors': Row('DBLE as printed', _AS_PRINTED),
    'dble': Row('DBLE'),
    'deep_ensemble': Row('deep ensemble', is_single=False),
}
# Table 1 and Table 2 of the paper.
GROUPS = {
    'all': ['vanilla', 'mc_dropout', 'temperature_scaling', 'label_smoothing', 'mixup',
            'trust_score', 'dble', 'deep_ensemble'],
    'ablation': ['vanilla', 'vanilla_errors', 'dble_all', 'dble_errors'],
}


def requested(names: Sequence[str]) -> list[str]:
  """The rows of --methods, each once, bases before the methods that build on them."""
  rows = {row for name in names for row in GROUPS.get(name, [name])}
  unknown = sorted(rows - set(ROWS))
  if unknown or not rows:
    raise UserError(
        f'Unknown method "{", ".join(unknown)}": --methods takes '
        f'{", ".join([*GROUPS, *ROWS])}.')
  return [row for row in ROWS if row in rows]
