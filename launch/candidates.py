"""Confidence models described in words: `per_error+log_variance+dropout=0`.

Each word of a description, joined by +, changes one setting of the default.
"""

from typing import NamedTuple

import keras

from dble_tf import confidence_models

DEFAULT = 'default'

# Word -> the setting that it changes, and to what.
_WORDS = {
    'errors': ('confidence_training', 'errors'),
    'all': ('confidence_training', 'all'),
    'held_out': ('confidence_training', 'held_out'),
    'per_query': ('normalisation', 'queries'),
    'per_error': ('normalisation', 'errors'),
    'softplus': ('parametrisation', 'softplus'),
    'log_variance': ('parametrisation', 'log_variance'),
    'per_dimension': ('per_dimension', True),
    'isotropic': ('per_dimension', False),
    'layer_norm': ('normalize_input', True),
    'raw_input': ('normalize_input', False),
    'constant': ('constant', True),
}
_NUMBERS = ('dropout', 'weight_decay')
HELP = (
    'Confidence models that learn side by side, of which the one with the best '
    'validation NLL is kept. Each is "default" or words joined by "+", as in '
    'per_error+raw_input,constant: what it learns from (errors, all, held_out), its '
    'loss (per_query, per_error), sigma (softplus, log_variance), one for each '
    'dimension or for all (per_dimension, isotropic), its input (layer_norm, '
    'raw_input), of all of which the first is the default; dropout=RATE (0.5), '
    'weight_decay=FACTOR (--weight_decay); constant learns nothing.')


class Candidate(NamedTuple):
  """One confidence model.

  Attributes:
    confidence_training: what it learns from.
    normalisation: of its loss.
    is_constant: whether sigma is the same for all.
    arguments: of `confidence_mlp`.
  """

  confidence_training: str
  normalisation: str
  is_constant: bool
  arguments: dict

  def build(self, dim: int, weight_decay: float) -> keras.Model:
    """g_phi; `weight_decay` where the description has none."""
    if self.is_constant:
      return confidence_models.constant_sigma(dim)
    return confidence_models.confidence_mlp(
        dim, **{'weight_decay': weight_decay, **self.arguments})


def parse(description: str) -> Candidate:
  """Understands a description, or raises a ValueError that names its wrong word."""
  settings = {}
  for word in description.split('+'):
    name, equals, number = word.partition('=')
    if word == DEFAULT:
      continue
    if word in _WORDS:
      name, value = _WORDS[word]
    elif equals and name in _NUMBERS:
      value = _fraction(word, number)
    else:
      raise ValueError(
          f'"{word}" is no word for a confidence model: take {DEFAULT}, '
          f'{", ".join(_WORDS)}, {", ".join(f"{name}=..." for name in _NUMBERS)}')
    if settings.setdefault(name, value) != value:
      raise ValueError(f'"{description}" sets {name} twice')
  if 'constant' in settings and len(settings) > 1:
    raise ValueError(
        f'"{description}": a constant sigma learns nothing, leave the other words out')
  return Candidate(
      confidence_training=settings.pop('confidence_training', 'errors'),
      normalisation=settings.pop('normalisation', 'queries'),
      is_constant=settings.pop('constant', False),
      arguments=settings)


def _fraction(word, text):
  try:
    value = float(text)
  except ValueError:
    value = -1.0
  if not 0 <= value < 1:
    raise ValueError(f'"{word}": give a number from 0 to below 1')
  return value


def problem(descriptions: list[str]) -> str | None:
  """What is wrong with a list of descriptions, or None."""
  try:
    parsed = [parse(description) for description in descriptions]
  except ValueError as error:
    return str(error)
  if not parsed:
    return 'give at least one, such as default'
  if any(one in parsed[:place] for place, one in enumerate(parsed)):
    return 'give each confidence model once'
  return None
