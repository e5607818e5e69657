"""A factor on sigma, and a temperature, fitted on held-out representations.

Phi learns from errors alone what sigma would suit them; the factor, of the smallest NLL,
makes it suit all images. What has the smallest NLL over all classes can still be too
sure or too unsure of the label: the temperature makes the confidence in it right.
Every evaluation samples with the same noise, which is the noise of inference, so the
search is over a smooth function and gives the same result each time.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import optimize
from scipy import stats

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
  """A result: sigma is multiplied by alpha, distances are divided by T.

  Attributes:
    sigma_scale: alpha >= 0; with 0 there is no sigma.
    temperature: T > 0.
    nll: of held-out images.
  """

  sigma_scale: float
  temperature: float
  nll: float


NO_SIGMA = Fitted(0.0, 1.0, np.nan)


@dataclasses.dataclass(frozen=True)
class HeldOut:
  """What the search needs to know of n held-out images.

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
    # Float32 knows nothing between this and one.
    confidences = np.clip(confidences[:, 0], _TINY, 1 - _TINY).astype(np.float64)
    return -float(np.mean(np.where(
        self._labels == self.class_ids, np.log(confidences), np.log1p(-confidences))))


@tf.function(reduce_retracing=True)
def _averaged_probabilities(terms, sigma_scale, temperature):
  distances = confidence.scaled_distances(terms, sigma_scale) / temperature
  return tf.reduce_mean(tf.exp(prototypes.log_likelihoods(distances)), axis=1)


def halves(class_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Places of two halves of [n] images, with as many of each class, up to one."""
  by_class = np.argsort(class_ids, kind='stable')
  return by_class[::2], by_class[1::2]


def fit(held_out: HeldOut, scaling: str) -> Fitted:
  """Finds what `scaling` names; what it does not name stays 1.

  With a temperature, alpha is that of the smallest NLL at its best T; then T is fitted
  to whether labels are right.
  """
  if scaling == 'none':
    return Fitted(1.0, 1.0, held_out.nll(1.0))
  if scaling == 'sigma_scale':
    return fit_sigma_scale(held_out.nll)
  alpha = fit_sigma_scale(lambda scale: fit_temperature(
      lambda temperature: held_out.nll(scale, temperature)).nll).sigma_scale
  temperature = fit_temperature(
      lambda temperature: held_out.confidence_nll(alpha, temperature)).temperature
  return Fitted(alpha, temperature, held_out.nll(alpha, temperature))


def pays(held_out: HeldOut, fitted: Fitted) -> bool:
  """Whether sigma and T lower the NLL by more than the standard error of that.

  What they gain over distances as they are is a mean over images; a gain that other
  images could as well have turned into a loss is none.
  """
  gains = held_out.nlls(0.0) - held_out.nlls(fitted.sigma_scale, fitted.temperature)
  return bool(gains.mean() > stats.sem(gains))


def fit_sigma_scale(nll: Callable[[float], float]) -> Fitted:
  """Alpha of the smallest NLL: 0, or between 1/100 and 100, with T = 1.

  The best of a few values, then a bounded search between its neighbours.
  """
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
  best = min(tried, key=tried.get)
  return Fitted(best, 1.0, tried[best])


def fit_temperature(nll: Callable[[float], float]) -> Fitted:
  """T between 0.05 and 20 of the smallest NLL; alpha is left at 0."""
  found = optimize.minimize_scalar(
      lambda log_temperature: nll(float(np.exp(log_temperature))),
      bounds=np.log(_TEMPERATURES), method='bounded', options={'xatol': 1e-2})
  return Fitted(0.0, float(np.exp(found.x)), float(found.fun))


def _or_inf(nll):
  """NaN is the worst of all, not the best."""
  return nll if np.isfinite(nll) else np.inf
