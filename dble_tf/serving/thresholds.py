"""Abstention: a threshold on the confidence, chosen on held-out data.

Risk is the fraction of accepted answers that are wrong, coverage the fraction of all
answers that are accepted.
"""

import math
from typing import NamedTuple

import numpy as np

from dble_tf.errors import UserError

# A threshold above every confidence: no answer is accepted.
NOTHING = 2.0


class Target(NamedTuple):
  """The risk or coverage to reach; with neither, every answer is accepted."""

  risk: float | None = None
  coverage: float | None = None

  def check(self) -> None:
    """Raises a `UserError` unless at most one is set, and within its bounds."""
    if self.risk is not None and self.coverage is not None:
      raise UserError(
          'Set a target risk or a target coverage, not both: one determines the '
          'other.')
    if self.risk is not None and not 0 < self.risk < 1:
      raise UserError(f'A target risk must lie between 0 and 1, not {self.risk}.')
    if self.coverage is not None and not 0 < self.coverage <= 1:
      raise UserError(
          f'A target coverage must be above 0 and at most 1, not {self.coverage}.')

  @property
  def is_given(self) -> bool:
    """True if a risk or a coverage is set."""
    return self.risk is not None or self.coverage is not None


def threshold(
    target: Target, is_correct: np.ndarray, confidence: np.ndarray) -> float:
  """Chooses the confidence from which answers are accepted.

  For a risk: the lowest threshold at which the target would still hold if one more
  accepted answer were wrong, (errors + 1) / (accepted + 1) <= risk. A few correct
  answers are thus no evidence: a risk of 0.01 takes at least 99. If no threshold
  qualifies, the result is `NOTHING`.

  For a coverage: the highest threshold that accepts at least that fraction.

  Answers of equal confidence are accepted or rejected together. The threshold lies
  halfway between the lowest accepted confidence and the next one below, so that
  rounding errors at inference change no decision.

  Args:
    target: the risk or the coverage.
    is_correct: [n] booleans, of held-out images.
    confidence: [n].

  Returns:
    The threshold; 0 accepts everything.
  """
  target.check()
  if not target.is_given:
    return 0.0
  if not len(confidence):
    raise UserError(
        'A threshold is chosen on images that the encoder was not trained on, but '
        'there are none: pass answers on a threshold split.')
  if not np.isfinite(confidence).all():
    raise UserError('Non-finite confidences: training has diverged.')
  # Distinct confidences, highest first, and the answers accepted down to each.
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
  """Computes risk and coverage; the risk is None if no answer is accepted.

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
