"""When to accept an answer: a threshold on the confidence, chosen on held-out data.

Risk is the share of wrong labels among accepted answers, coverage the share of accepted
answers among all.
"""

import math
from typing import NamedTuple

import numpy as np

from dble_tf.errors import UserError

# Above every confidence: nothing is accepted.
NOTHING = 2.0


class Target(NamedTuple):
  """What a threshold is chosen for; with neither, every answer is accepted."""

  risk: float | None = None
  coverage: float | None = None

  def check(self) -> None:
    """Refuses what cannot be a target."""
    if self.risk is not None and self.coverage is not None:
      raise UserError(
          'Choose a target risk or a target coverage: each decides the other.')
    if self.risk is not None and not 0 < self.risk < 1:
      raise UserError(f'A target risk lies between 0 and 1, unlike {self.risk}.')
    if self.coverage is not None and not 0 < self.coverage <= 1:
      raise UserError(
          f'A target coverage is above 0 and at most 1, unlike {self.coverage}.')

  @property
  def is_given(self) -> bool:
    return self.risk is not None or self.coverage is not None


def threshold(
    target: Target, is_correct: np.ndarray, confidence: np.ndarray) -> float:
  """The confidence from which answers are accepted.

  For a risk: the lowest threshold at which one more accepted answer, were it wrong,
  would still leave the risk within the target: (errors + 1) / (accepted + 1). So a few
  right answers prove nothing: a risk of 0.01 needs 99 of them. Where no threshold does,
  nothing is accepted.

  For a coverage: the highest threshold that accepts at least that share.

  Answers of the same confidence are accepted or refused together, and the threshold
  lies halfway to the next confidence below, so that rounding does not decide.

  Args:
    target: the risk or the coverage.
    is_correct: [n] booleans, of held-out images.
    confidence: [n].
  """
  target.check()
  if not target.is_given:
    return 0.0
  if not len(confidence):
    raise UserError(
        'A threshold is chosen on images that the encoder was not trained on, and '
        'there are none: hold some out with --validation_size.')
  if not np.isfinite(confidence).all():
    raise UserError('Some confidences are no numbers: training has diverged.')
  # Distinct confidences, the highest first, and what is accepted down to each.
  levels, groups = np.unique(-np.asarray(confidence, np.float32), return_inverse=True)
  levels = -levels
  accepted = np.cumsum(np.bincount(groups))
  errors = np.cumsum(np.bincount(groups, weights=~np.asarray(is_correct)))
  if target.risk is not None:
    within = np.flatnonzero((errors + 1) / (accepted + 1) <= target.risk)
    if not len(within):
      return NOTHING
    last = within[-1]
  else:
    needed = math.ceil(round(target.coverage * len(confidence), 6))
    last = np.flatnonzero(accepted >= needed)[0]
  if last + 1 == len(levels):
    return 0.0
  halfway = (levels[last] + levels[last + 1]) / np.float32(2)
  return float(halfway if halfway > levels[last + 1] else levels[last])


def judge(
    threshold: float, is_correct: np.ndarray, confidence: np.ndarray
) -> dict[str, float | int | None]:
  """Risk and coverage of a threshold; the risk is None where nothing is accepted.

  >>> judge(0.5, np.array([True, False, True]), np.array([0.9, 0.6, 0.2]))
  {'risk': 0.5, 'coverage': 0.6666666666666666, 'images': 3}
  """
  accept = np.asarray(confidence, np.float32) >= np.float32(threshold)
  wrong = accept & ~np.asarray(is_correct)
  return {
      'risk': float(wrong.sum() / accept.sum()) if accept.any() else None,
      'coverage': float(accept.mean()),
      'images': len(accept),
  }
