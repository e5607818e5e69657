"""Comparisons of methods on the same test images: a paired bootstrap.

A resample draws n of the n images with replacement. It is given by how often it holds
each image, so that images are binned and sorted once, not for every resample.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_NUM_BINS = 15
_CHUNK = 10  # Resamples at a time, which fit into the processor's cache.


class Difference(NamedTuple):
  """A difference of a figure between two methods, with its interval of 95 %."""

  value: float
  low: float
  high: float

  @property
  def is_significant(self) -> bool:
    """True if the interval excludes zero."""
    return self.low > 0 or self.high < 0


def resample(
    num_images: int, num_resamples: int, rng: np.random.Generator) -> np.ndarray:
  """Counts the images of resamples.

  Args:
    num_images: n.
    num_resamples: R.
    rng: source of randomness.

  Returns:
    [1 + R, n] int32: how often each image is in the images themselves (once), and in
    each resample.
  """
  counts = rng.multinomial(
      num_images, np.full(num_images, 1 / num_images), size=num_resamples)
  return np.concatenate([np.ones([1, num_images]), counts]).astype(np.int32)


def resampled_figures(
    predictions: Mapping[str, np.ndarray], counts: np.ndarray
) -> dict[str, np.ndarray]:
  """Computes `evaluation.figures` of each resample.

  Args:
    predictions: label, true_label and confidence, each [n]; probabilities [n, M];
      score [n], where the method has one.
    counts: [R, n], the multiplicity of each image in each resample of n images.

  Returns:
    accuracy, ece, nll, brier, failure_auroc and aurc, each [R]. failure_auroc is NaN
    where all predictions are correct or all are wrong.
  """
  true_label = np.asarray(predictions['true_label'])
  probabilities = np.asarray(predictions['probabilities'], np.float64)
  confidence = np.asarray(predictions['confidence'])
  is_correct = np.asarray(predictions['label']) == true_label
  n = len(true_label)
  of_true = probabilities[np.arange(n), true_label]
  terms = np.column_stack([
      is_correct,
      -np.log(np.maximum(of_true, np.finfo(np.float32).tiny)),
      np.square(probabilities).sum(axis=1) - 2 * of_true + 1,
      _one_hot_bins(confidence) * (confidence - is_correct)[:, np.newaxis]])
  order = _Order(~is_correct, np.asarray(predictions.get('score', confidence)))
  results = []
  for start in range(0, len(counts), _CHUNK):
    some = counts[start:start + _CHUNK]
    means = some.astype(np.float64) @ terms / n
    results.append(np.column_stack([
        means[:, 0], np.abs(means[:, 3:]).sum(axis=1), means[:, 1:3],
        *order.figures(some)]))
  names = ('accuracy', 'ece', 'nll', 'brier', 'failure_auroc', 'aurc')
  return dict(zip(names, np.concatenate(results).T))


def _one_hot_bins(confidence):
  """[n] -> [n, 15]: the bin (l/15, (l+1)/15] of each; 0 is in the first."""
  # In float32, as `metrics.calibration_bins`: on the edges rounding decides.
  bins = np.ceil(confidence.astype(np.float32) * np.float32(_NUM_BINS)).astype(int) - 1
  return np.eye(_NUM_BINS)[np.clip(bins, 0, _NUM_BINS - 1)]


class _Order:
  """The order of images by falling score, for figures that depend on nothing else."""

  def __init__(self, is_wrong, scores):
    self._order = np.argsort(-scores, kind='stable')
    ordered = scores[self._order]
    # The first image of each group of equal scores.
    self._starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    self._is_wrong = is_wrong[self._order]
    # H(0), H(1), … H(n): harmonic numbers.
    self._harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, len(scores) + 1)))

  def figures(self, counts):
    """Failure AUROC and AURC of resamples: [R, n] -> [R], [R].

    With s_g images, w_g of them wrong, in a group of equal scores, and S and W such
    images before it, the risks at coverages S + 1 … S + s_g are
    (W + (k - S) w_g / s_g) / k, the sum of which has a closed form.
    """
    counts = counts[:, self._order]
    sizes = np.add.reduceat(counts, self._starts, axis=1)
    wrong = np.add.reduceat(counts * self._is_wrong, self._starts, axis=1)
    up_to, wrong_up_to = np.cumsum(sizes, axis=1), np.cumsum(wrong, axis=1)
    before, wrong_before = up_to - sizes, wrong_up_to - wrong
    total, total_wrong = up_to[:, -1], wrong_up_to[:, -1]
    error_rates = wrong / np.maximum(sizes, 1)
    risks = wrong + (wrong_before - error_rates * before) * (
        self._harmonic[up_to] - self._harmonic[before])
    # Pairs of a right and a wrong one that are in order, ties counting half.
    in_order = ((sizes - wrong) * (total_wrong[:, np.newaxis] - wrong_before
                                   - 0.5 * wrong)).sum(axis=1)
    pairs = (total - total_wrong).astype(np.float64) * total_wrong
    auroc = np.divide(
        in_order, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return auroc, risks.sum(axis=1) / total


def paired_difference(first: np.ndarray, second: np.ndarray) -> Difference | None:
  """Compares a figure of two methods over the same resamples.

  The interval is the basic one of the bootstrap: the resampled differences, mirrored
  at the measured one. It takes out the bias of figures that resampling raises, as it
  does the ECE.

  Args:
    first: [S, 1 + R], by seed, of the images themselves and of R resamples.
    second: the same of another method.

  Returns:
    The first less the second, averaged over seeds; None where it is undefined for
    the images themselves. Resamples in which it is undefined do not count.
  """
  value, *resampled = np.mean(np.asarray(first) - second, axis=0)
  if not np.isfinite(value):
    return None
  low, high = 2 * value - np.nanpercentile(resampled, [97.5, 2.5])
  return Difference(float(value), float(low), float(high))


def expected_ece(
    confidence: np.ndarray, rng: np.random.Generator, num_draws: int = 200
) -> tuple[float, float]:
  """Draws the ECE that a perfectly calibrated model shows on finitely many images.

  Args:
    confidence: [n], the probabilities of being correct.
    rng: source of randomness.
    num_draws: number of times that the correctness of all images is drawn.

  Returns:
    Mean and 95th percentile of the ECE over the draws.
  """
  confidence = np.asarray(confidence)
  is_correct = rng.random([num_draws, len(confidence)]) < confidence
  gaps = (confidence - is_correct) @ _one_hot_bins(confidence)
  errors = np.abs(gaps).sum(axis=1) / len(confidence)
  return float(errors.mean()), float(np.percentile(errors, 95))
