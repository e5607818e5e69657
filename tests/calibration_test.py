import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize
from scipy import special
from scipy import stats
from scipy.spatial import distance

from dble_tf import calibration
from dble_tf import confidence


def make_data(spread, n=1500, dim=4, num_samples=20, sigma=0.5):
  """Two classes around their centers, more or less far."""
  rng = np.random.default_rng(0)
  centers = np.stack([np.zeros(dim), np.full(dim, 2.0)]).astype(np.float32)
  class_ids = np.arange(n) % 2
  h = (centers[class_ids] + spread * rng.normal(size=[n, dim])).astype(np.float32)
  return calibration.HeldOut(
      h, np.full_like(h, sigma), class_ids, tf.constant(centers),
      confidence.standard_noise([num_samples, dim], [0, 0]))


def nlls_by_hand(data, sigma_scale, temperature=1.0):
  likelihoods = np.mean([
      special.softmax(-distance.cdist(
          data.h + sigma_scale * data.sigma * e, data.centers) / temperature, axis=1)
      for e in data.noise.numpy()], axis=0)
  return -np.log(likelihoods[np.arange(len(data.h)), data.class_ids])


def nll_by_hand(data, sigma_scale, temperature=1.0):
  return nlls_by_hand(data, sigma_scale, temperature).mean()


@pytest.mark.parametrize(
    'sigma_scale, temperature', [(0.0, 1.0), (0.7, 1.0), (2.0, 0.4)])
def test_the_nll_is_that_of_averaged_probabilities(sigma_scale, temperature):
  data = make_data(1.5)
  assert data.nll(sigma_scale, temperature) == pytest.approx(
      nll_by_hand(data, sigma_scale, temperature), rel=1e-4)


# Without an opinion.
WIDE = calibration.Prior(1.0, width=1e3)


def penalized_by_hand(data, prior, sigma_scale, temperature):
  """The NLL, less a normal density of log alpha, over the number of images."""
  log_density = stats.norm.logpdf(
      np.log(sigma_scale), np.log(prior.center), prior.width)
  highest = stats.norm.logpdf(0.0, 0.0, prior.width)
  return (nll_by_hand(data, sigma_scale, temperature)
          + (highest - log_density) / len(data.h))


def test_the_priors_penalty_is_that_of_a_normal_logarithm():
  prior = calibration.Prior(center=0.5, width=2.0)
  assert prior.penalty(0.5) == 0
  # One and two standard deviations away, on either side.
  for deviations in (1, -1, 2, -2):
    assert prior.penalty(0.5 * np.exp(2.0 * deviations)) == pytest.approx(
        deviations**2 / 2)


def test_alpha_and_t_are_the_best_of_a_fine_grid():
  data = make_data(2.0, n=800)
  scales, temperatures = np.geomspace(1e-2, 1e2, 41), np.geomspace(0.05, 20, 27)
  nlls = np.array([[data.nll(scale, t) for t in temperatures] for scale in scales])
  for prior in (calibration.PRIOR, WIDE):
    fitted = calibration.fit(data, prior)
    losses = nlls + np.array([[prior.penalty(scale) / 800] for scale in scales])
    row, column = np.unravel_index(losses.argmin(), losses.shape)
    assert 0 < row < 40 and 0 < column < 26  # Inside, or the test would show nothing.
    assert losses[row, column] == pytest.approx(
        penalized_by_hand(data, prior, scales[row], temperatures[column]), rel=1e-4)
    assert penalized_by_hand(
        data, prior, fitted.sigma_scale, fitted.temperature) <= losses.min() + 1e-5
    # Both within a step of the grid and a bit.
    assert fitted.sigma_scale == pytest.approx(scales[row], rel=0.3)
    assert fitted.temperature == pytest.approx(temperatures[column], rel=0.3)
    assert fitted.nll == pytest.approx(
        nll_by_hand(data, fitted.sigma_scale, fitted.temperature), rel=1e-4)


@pytest.mark.parametrize('spread, n', [(1.0, 4), (1.5, 4), (1.5, 20)])
def test_where_images_are_few_alpha_stays_near_the_center_of_its_prior(spread, n):
  data = make_data(spread, n=n)
  center = calibration.PRIOR.center
  assert calibration.fit(data).sigma_scale == pytest.approx(center, rel=0.1)
  # Which is not what these images say.
  assert abs(np.log(calibration.fit(data, WIDE).sigma_scale / center)) > np.log(2)


def test_where_images_are_many_the_prior_hardly_matters():
  data = make_data(2.0, n=6000)
  with_prior, without = calibration.fit(data), calibration.fit(data, WIDE)
  assert with_prior.sigma_scale == pytest.approx(without.sigma_scale, rel=0.1)
  assert with_prior.sigma_scale > 1.5 * calibration.PRIOR.center
  assert with_prior.nll == pytest.approx(without.nll, abs=1e-4)


def test_a_prior_as_good_as_certain_leaves_the_best_temperature_to_fit():
  data = make_data(2.0, n=300)
  fitted = calibration.fit(data, calibration.Prior(center=3.0, width=1e-3))
  assert fitted.sigma_scale == pytest.approx(3.0, rel=0.01)
  best = optimize.minimize_scalar(
      lambda log_t: nll_by_hand(data, 3.0, np.exp(log_t)), bounds=(-3, 3),
      method='bounded')
  assert fitted.temperature == pytest.approx(np.exp(best.x), rel=0.03)


def test_a_factor_on_sigma_undoes_a_factor_in_sigma():
  ones, fives = (
      calibration.fit(make_data(2.0, sigma=sigma), WIDE) for sigma in (0.1, 0.5))
  assert ones.sigma_scale == pytest.approx(5 * fives.sigma_scale, rel=0.05)
  assert ones.temperature == pytest.approx(fives.temperature, rel=0.05)
  assert ones.nll == pytest.approx(fives.nll, abs=1e-4)


class Surface(calibration.HeldOut):
  """Has an NLL of its own: a bowl around (e, exp(-1/2)), behind a wall."""

  def nll(self, sigma_scale, temperature=1.0):
    bowl = (np.log(sigma_scale) - 1)**2 + (np.log(temperature) + 0.5)**2
    return np.nan if sigma_scale < 0.9 else bowl


def test_what_is_not_finite_is_never_the_best():
  data = Surface(**vars(make_data(2.0, n=10)))
  fitted = calibration.fit(data, WIDE)
  assert fitted.sigma_scale == pytest.approx(np.e, rel=0.02)
  assert fitted.temperature == pytest.approx(np.exp(-0.5), rel=0.02)


@pytest.mark.parametrize('sign, expected', [(1, (1e-2, 0.05)), (-1, (1e2, 20))])
def test_alpha_and_t_stay_within_their_bounds(sign, expected):
  class Slope(calibration.HeldOut):
    def nll(self, sigma_scale, temperature=1.0):
      return sign * (np.log(sigma_scale) + np.log(temperature))

  fitted = calibration.fit(Slope(**vars(make_data(2.0, n=10))), WIDE)
  assert (fitted.sigma_scale, fitted.temperature) == pytest.approx(expected, rel=0.01)


def test_the_result_is_the_same_each_time():
  assert calibration.fit(make_data(2.0)) == calibration.fit(make_data(2.0))


@pytest.mark.parametrize('squared_scale', [None, 0.3])
def test_the_gain_is_over_the_softmax_of_theta_with_a_temperature(squared_scale):
  data = dataclasses.replace(make_data(3.0, n=300), squared_scale=squared_scale)
  judged = calibration.judge(data, 2.0, 0.7)
  logits = -distance.cdist(data.h, data.centers)
  if squared_scale:
    logits = -squared_scale * logits**2

  def nlls(temperature):
    return -special.log_softmax(logits / temperature, axis=1)[
        np.arange(300), data.class_ids]

  best = optimize.minimize_scalar(lambda t: nlls(t).mean(), bounds=[0.1, 10.0])
  gains = nlls(best.x) - nlls_by_hand(data, 2.0, 0.7)
  assert judged[:2] == (2.0, 0.7)
  assert judged.nll == pytest.approx(nll_by_hand(data, 2.0, 0.7), rel=1e-4)
  assert judged.gain == pytest.approx(gains.mean(), rel=1e-3)
  assert judged.gain_error == pytest.approx(
      gains.std(ddof=1) / np.sqrt(300), rel=1e-3)


# The temperature of logits


@pytest.mark.parametrize('scale', [0.3, 1.0, 6.0])
def test_the_temperature_is_where_the_nll_has_no_slope(scale):
  rng = np.random.default_rng(0)
  logits = scale * rng.normal(size=[500, 5])
  class_ids = np.array([rng.choice(5, p=p) for p in special.softmax(
      logits / scale * 1.5, axis=1)])

  def slope(temperature):
    """Of the NLL in 1 / T: the expected logit minus the true one."""
    p = special.softmax(logits / temperature, axis=1)
    return ((p * logits).sum(axis=1) - logits[np.arange(500), class_ids]).mean()

  expected = optimize.brentq(slope, 0.06, 19.0)
  assert calibration.fit_temperature(logits, class_ids) == pytest.approx(
      expected, rel=1e-4)


def test_a_temperature_that_would_run_away_stays_bounded():
  logits = np.array([[1.0, 0.0], [0.0, 1.0]])
  assert 0.05 <= calibration.fit_temperature(logits, np.array([0, 1])) < 0.06
  assert 19 < calibration.fit_temperature(logits, np.array([1, 0])) <= 20


def test_the_temperature_of_negative_distances_has_the_best_nll_without_sigma():
  data = make_data(2.0)
  fitted = calibration.fit_temperature(
      -distance.cdist(data.h, data.centers), data.class_ids)
  losses = {t: data.nll(0.0, t) for t in np.geomspace(0.05, 20, 200)}
  best = min(losses, key=losses.get)
  assert fitted == pytest.approx(best, rel=0.03)
  assert data.nll(0.0, fitted) <= losses[best] + 1e-6
