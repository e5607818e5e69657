"""Calibration on held-out representations: pure functions that return fitted numbers.

Phi learns from errors alone the sigma that suits them; a factor alpha on sigma, of the
smallest NLL, makes it suit all images. The smallest NLL over all classes can still
leave the label's own confidence too high or too low: a temperature T on the distances
mends that. Every evaluation samples with the noise of inference, so the search is over
a smooth function and gives the same result each time.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dble_tf import confidence
from dble_tf import metrics
from dble_tf import prototypes

SCALINGS = ('none', 'sigma_scale', 'sigma_scale_and_temperature')

_SIGMA_SCALES = np.geomspace(1e-2, 1e2, 17)
_TEMPERATURES = (0.05, 20.0)
_BATCH_DISTANCES = 2**22  # Samples times classes times images at a time: 16 MB.
_KEPT_DISTANCES = 2**27  # And in all: 512 MB.
_TINY = np.float32(2**-24)


class Fitted(NamedTuple):
  """Numbers fitted on held-out images.

  Attributes:
    sigma_scale: alpha >= 0, the factor on sigma; 0 disables sigma.
    temperature: T > 0, which distances are divided by.
    nll: of the held-out images with these two.
    gain: the NLL without sigma and T, less that with those that were searched for.
    gain_error: the standard error of `gain` over the images.
  """

  sigma_scale: float
  temperature: float
  nll: float
  gain: float
  gain_error: float

  @property
  def is_significant(self) -> bool:
    """A gain above its standard error: other images would hardly turn it around."""
    return self.gain > self.gain_error


@dataclasses.dataclass(frozen=True)
class HeldOut:
  """All that Eq. 10 needs of n held-out images.

  Attributes:
    h: [n, D].
    sigma: [n, D], as g_phi gives it.
    class_ids: [n].
    centers: [M, D].
    noise: [U, D], as at inference.
  """

  h: np.ndarray
  sigma: np.ndarray
  class_ids: np.ndarray
  centers: tf.Tensor
  noise: tf.Tensor

  def _terms(self) -> Iterable[confidence.DistanceTerms]:
    """All matrix products, done once for the whole search where memory allows."""
    if len(self.h) * len(self.noise) * len(self.centers) > _KEPT_DISTANCES:
      return self._computed_terms()
    return self._kept_terms

  @functools.cached_property
  def _kept_terms(self):
    return list(self._computed_terms())

  def _computed_terms(self):
    batch = max(1, _BATCH_DISTANCES // (len(self.noise) * len(self.centers)))
    for start in range(0, len(self.h), batch):
      rows = slice(start, start + batch)
      yield confidence.distance_terms(
          self.h[rows], self.sigma[rows], self.centers, self.noise)

  def probabilities(self, sigma_scale: float, temperature: float = 1.0) -> np.ndarray:
    """Eq. 10 for every class: [n, M]."""
    scale, temperature = (
        tf.constant(number, tf.float32) for number in (sigma_scale, temperature))
    return np.concatenate([
        _averaged_probabilities(terms, scale, temperature) for terms in self._terms()])

  def nlls(self, sigma_scale: float, temperature: float = 1.0) -> np.ndarray:
    """The NLL of each image under Eq. 10: [n]."""
    return metrics.negative_log_likelihoods(
        self.class_ids, self.probabilities(sigma_scale, temperature)).numpy()

  def nll(self, sigma_scale: float, temperature: float = 1.0) -> float:
    """Their mean."""
    return float(self.nlls(sigma_scale, temperature).mean(dtype=np.float64))

  @functools.cached_property
  def _labels(self) -> np.ndarray:
    return prototypes.predicted_labels(
        prototypes.distances(self.h, self.centers)).numpy()

  def confidence_nll(self, sigma_scale: float, temperature: float = 1.0) -> float:
    """The mean NLL of the label (Eq. 6) being right or wrong, by its confidence."""
    confidences = np.take_along_axis(
        self.probabilities(sigma_scale, temperature), self._labels[:, np.newaxis], 1)
    # No float32 lies between 1 - _TINY and 1.
    confidences = np.clip(confidences[:, 0], _TINY, 1 - _TINY).astype(np.float64)
    return -float(np.mean(np.where(
        self._labels == self.class_ids, np.log(confidences), np.log1p(-confidences))))


@tf.function(reduce_retracing=True)
def _averaged_probabilities(terms, sigma_scale, temperature):
  distances = confidence.scaled_distances(terms, sigma_scale) / temperature
  return tf.reduce_mean(tf.exp(prototypes.log_likelihoods(distances)), axis=1)


def fit(held_out: HeldOut, scaling: str) -> Fitted:
  """Fits what `scaling` names; what it does not name stays 1.

  With a temperature, alpha is that of the smallest NLL at its best T; then T is fitted
  to whether labels are right.
  """
  sigma_scale = temperature = 1.0
  if scaling == 'sigma_scale':
    sigma_scale = fit_sigma_scale(held_out.nll)
  elif scaling == 'sigma_scale_and_temperature':
    sigma_scale = fit_sigma_scale(lambda scale: _minimize_temperature(
        functools.partial(held_out.nll, scale)).fun)
    temperature = float(np.exp(_minimize_temperature(
        functools.partial(held_out.confidence_nll, sigma_scale)).x))
  return _judged(held_out, sigma_scale, temperature)


def fit_significant(held_out: HeldOut, scaling: str) -> Fitted:
  """As `fit`, but disables sigma (alpha = 0, T = 1) without a significant gain."""
  fitted = fit(held_out, scaling)
  if scaling == 'none' or fitted.is_significant:
    return fitted
  return fitted._replace(sigma_scale=0.0, temperature=1.0, nll=held_out.nll(0.0))


def _judged(held_out, sigma_scale, temperature):
  from scipy import stats

  nlls = held_out.nlls(sigma_scale, temperature)
  gains = held_out.nlls(0.0) - nlls
  return Fitted(
      sigma_scale, temperature, float(nlls.mean(dtype=np.float64)),
      gain=float(gains.mean()), gain_error=float(stats.sem(gains)))


def fit_sigma_scale(nll: Callable[[float], float]) -> float:
  """Alpha of the smallest NLL: 0, or between 1/100 and 100.

  The best of a few values, then a bounded search between its neighbors.
  """
  from scipy import optimize

  tried = {scale: _or_inf(nll(scale)) for scale in (0.0, *map(float, _SIGMA_SCALES))}
  place = int(np.argmin([tried[scale] for scale in _SIGMA_SCALES]))
  bounds = np.log(_SIGMA_SCALES[[max(place - 1, 0),
                                 min(place + 1, len(_SIGMA_SCALES) - 1)]])

  def refined(log_scale):
    scale = float(np.exp(log_scale))
    tried[scale] = _or_inf(nll(scale))
    return tried[scale]

  optimize.minimize_scalar(
      refined, bounds=bounds, method='bounded', options={'xatol': 1e-2})
  return min(tried, key=tried.get)


def fit_temperature(logits: np.ndarray, class_ids: np.ndarray) -> float:
  """The temperature between 0.05 and 20 of the smallest NLL (Guo et al., 2017).

  Args:
    logits: [n, M]; negative distances are the logits of Eq. 3.
    class_ids: [n].
  """
  from scipy import special

  logits = np.asarray(logits, np.float64)
  true_logits = logits[np.arange(len(logits)), class_ids]

  def nll(temperature):
    return np.mean(special.logsumexp(logits / temperature, axis=1)
                   - true_logits / temperature)

  return float(np.exp(_minimize_temperature(nll, xatol=1e-6).x))


def _minimize_temperature(nll, xatol=1e-2):
  """SciPy's result of minimizing NLL(T) over log T."""
  from scipy import optimize

  return optimize.minimize_scalar(
      lambda log_temperature: nll(float(np.exp(log_temperature))),
      bounds=np.log(_TEMPERATURES), method='bounded', options={'xatol': xatol})


def _or_inf(nll):
  """Ranks NaN last."""
  return nll if np.isfinite(nll) else np.inf
