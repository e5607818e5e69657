"""Calibration on held-out representations: pure functions that return fitted numbers.

Phi learns from errors alone the sigma that suits them; a factor alpha on sigma and a
temperature T on the distances, of the smallest NLL, make it suit all images. Alpha has
a weak prior, which decides where images are few. Every evaluation samples with the
noise of inference, so the search is over a smooth function and gives the same result
each time.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dble_tf import confidence
from dble_tf import metrics
from dble_tf import prototypes

SCALINGS = ('fitted', 'none')

_SIGMA_SCALES = (1e-2, 1e2)
_TEMPERATURES = (0.05, 20.0)
_BATCH_DISTANCES = 2**22  # Samples times classes times images at a time: 16 MB.
_KEPT_DISTANCES = 2**27  # And in all: 512 MB.


class Prior(NamedTuple):
  """A normal distribution of log alpha.

  Attributes:
    center: its median as alpha, which is alpha where there are no held-out images.
    width: its standard deviation.
  """

  center: float
  width: float

  def penalty(self, sigma_scale: float) -> float:
    """Its negative log density, up to a constant."""
    return 0.5 * (math.log(sigma_scale / self.center) / self.width)**2


# From MNIST with 2,000 training images, episodes of 1 support and 9 queries a class and
# an encoder that learned from distances; other experiments take it as it is.
PRIOR = Prior(center=0.8, width=0.5)


class Fitted(NamedTuple):
  """Numbers fitted on held-out images.

  Attributes:
    sigma_scale: alpha, the factor on sigma.
    temperature: T, which distances are divided by.
    nll: of the held-out images with these two.
    gain: what sigma adds: the NLL without it, of the softmax that theta learned with
      over a temperature of its own, fitted on the same images, less `nll`.
    gain_error: the standard error of `gain` over the images.
  """

  sigma_scale: float
  temperature: float
  nll: float
  gain: float
  gain_error: float


@dataclasses.dataclass(frozen=True)
class HeldOut:
  """All that Eq. 10 needs of n held-out images.

  Attributes:
    h: [n, D].
    sigma: [n, D], as g_phi gives it.
    class_ids: [n].
    centers: [M, D].
    noise: [U, D], as at inference.
    squared_scale: the factor on squared distances that theta learned with; None for
      distances.
  """

  h: np.ndarray
  sigma: np.ndarray
  class_ids: np.ndarray
  centers: tf.Tensor
  noise: tf.Tensor
  squared_scale: float | None = None

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


@tf.function(reduce_retracing=True)
def _averaged_probabilities(terms, sigma_scale, temperature):
  distances = confidence.scaled_distances(terms, sigma_scale) / temperature
  return tf.reduce_mean(tf.exp(prototypes.log_likelihoods(distances)), axis=1)


def fit(held_out: HeldOut, prior: Prior = PRIOR) -> Fitted:
  """Fits alpha and T: the smallest NLL, summed over the images, less the log prior.

  Alpha lies between 1/100 and 100, T between 1/20 and 20.
  """
  from scipy import optimize

  def penalized_nll(logarithms):
    sigma_scale, temperature = np.exp(logarithms)
    nll = held_out.nll(sigma_scale, temperature)
    penalty = prior.penalty(sigma_scale) / len(held_out.h)
    return nll + penalty if np.isfinite(nll) else np.inf

  start = np.array([math.log(prior.center), 0.0])
  fitted = optimize.minimize(
      penalized_nll, start, method='Nelder-Mead',
      bounds=np.log([_SIGMA_SCALES, _TEMPERATURES]),
      options={'initial_simplex': start + [[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]],
               'xatol': 1e-3, 'fatol': 1e-6})
  return judge(held_out, *map(float, np.exp(fitted.x)))


def judge(held_out: HeldOut, sigma_scale: float, temperature: float) -> Fitted:
  """The NLL with given numbers, and its gain over no sigma and a fitted temperature."""
  from scipy import stats

  nlls = held_out.nlls(sigma_scale, temperature)
  logits = -prototypes.shaped(
      prototypes.distances(held_out.h, held_out.centers), held_out.squared_scale)
  without_sigma = metrics.negative_log_likelihoods(
      held_out.class_ids,
      tf.nn.softmax(logits / fit_temperature(logits, held_out.class_ids)))
  gains = without_sigma.numpy() - nlls
  return Fitted(
      sigma_scale, temperature, float(nlls.mean(dtype=np.float64)),
      gain=float(gains.mean()), gain_error=float(stats.sem(gains)))


def fit_temperature(logits: np.ndarray, class_ids: np.ndarray) -> float:
  """The temperature between 0.05 and 20 of the smallest NLL (Guo et al., 2017).

  Args:
    logits: [n, M]; negative distances are the logits of Eq. 3.
    class_ids: [n].
  """
  from scipy import optimize
  from scipy import special

  logits = np.asarray(logits, np.float64)
  true_logits = logits[np.arange(len(logits)), class_ids]

  def nll(temperature):
    return np.mean(special.logsumexp(logits / temperature, axis=1)
                   - true_logits / temperature)

  result = optimize.minimize_scalar(
      lambda log_temperature: nll(math.exp(log_temperature)),
      bounds=np.log(_TEMPERATURES), method='bounded', options={'xatol': 1e-6})
  return math.exp(result.x)
