import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize
from scipy import special
from scipy import stats
from scipy.spatial import distance
from sklearn import metrics as sklearn_metrics

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


def test_the_factor_is_the_best_of_a_fine_grid():
  data = make_data(2.0)
  fitted = calibration.fit(data, 'sigma_scale')
  grid = np.geomspace(1e-2, 1e2, 400)
  losses = [data.nll(scale) for scale in grid]
  best = grid[np.argmin(losses)]
  assert 1e-1 < best < 1e2  # Inside, or the test would show nothing.
  assert fitted.nll <= min(losses) + 1e-5
  assert fitted.sigma_scale == pytest.approx(best, rel=0.1)
  assert fitted.temperature == 1.0


def test_a_factor_on_sigma_undoes_a_factor_in_sigma():
  ones, fives = (calibration.fit(make_data(2.0, sigma=sigma), 'sigma_scale')
                 for sigma in (0.1, 0.5))
  assert ones.sigma_scale == pytest.approx(5 * fives.sigma_scale, rel=0.05)
  assert ones.nll == pytest.approx(fives.nll, abs=1e-4)


def test_where_noise_only_hurts_there_is_none():
  # Every image at its center: the surer the better.
  data = make_data(0.0)
  fitted = calibration.fit(data, 'sigma_scale')
  assert fitted.nll <= data.nll(0.0) + 1e-6
  assert fitted.sigma_scale < 0.05


def test_none_leaves_sigma_as_it_is():
  data = make_data(1.5)
  fitted = calibration.fit(data, 'none')
  assert fitted[:3] == (1.0, 1.0, data.nll(1.0))
  assert calibration.fit_significant(data, 'none') == fitted


def test_the_confidences_nll_is_sklearns_log_loss_of_being_right():
  data = make_data(1.5)
  probabilities = data.probabilities(0.7, 0.8)
  labels = distance.cdist(data.h, data.centers).argmin(axis=1)
  confidences = probabilities[np.arange(len(labels)), labels].astype(np.float64)
  assert data.confidence_nll(0.7, 0.8) == pytest.approx(
      sklearn_metrics.log_loss(labels == data.class_ids, confidences), rel=1e-5)


def test_with_a_temperature_alpha_has_the_best_nll_and_t_the_best_confidence():
  data = make_data(2.0)
  both = calibration.fit(data, 'sigma_scale_and_temperature')
  temperatures = np.geomspace(0.1, 10, 60)
  best_nll = lambda scale: min(data.nll(scale, t) for t in temperatures)
  assert best_nll(both.sigma_scale) <= min(
      best_nll(scale) for scale in (0.0, *np.geomspace(0.02, 20, 15))) + 1e-4
  losses = [data.confidence_nll(both.sigma_scale, t) for t in temperatures]
  assert both.temperature == pytest.approx(temperatures[np.argmin(losses)], rel=0.1)
  assert both.nll == pytest.approx(
      nll_by_hand(data, both.sigma_scale, both.temperature), rel=1e-4)


def test_a_confidence_of_one_that_is_wrong_is_a_large_loss_but_a_number():
  data = make_data(2.0)
  assert 1 < data.confidence_nll(0.0, 1e-6) < 17


def test_what_is_not_finite_is_never_the_best():
  fitted = calibration.fit_sigma_scale(
      lambda scale: np.nan if scale < 0.5 else (np.log(scale) - 1)**2)
  assert fitted == pytest.approx(np.e, rel=0.02)


# The significance of sigma


@pytest.mark.parametrize('scaling', ['sigma_scale', 'sigma_scale_and_temperature'])
def test_the_gain_is_the_mean_difference_to_the_nll_without_sigma(scaling):
  data = make_data(3.0, n=300)
  fitted = calibration.fit(data, scaling)
  gains = (nlls_by_hand(data, 0.0)
           - nlls_by_hand(data, fitted.sigma_scale, fitted.temperature))
  assert fitted.gain == pytest.approx(gains.mean(), rel=1e-3)
  assert fitted.gain_error == pytest.approx(
      gains.std(ddof=1) / np.sqrt(300), rel=1e-3)
  assert fitted.gain_error == pytest.approx(stats.sem(gains), rel=1e-3)
  assert fitted.is_significant and calibration.fit_significant(data, scaling) == fitted


@pytest.mark.parametrize('gain, gain_error, expected', [
    (0.2, 0.06, True), (0.1, 0.46, False), (-0.2, 0.06, False), (0.0, 0.0, False),
    (np.nan, np.nan, False)])
def test_a_gain_is_significant_above_its_standard_error(gain, gain_error, expected):
  assert calibration.Fitted(
      2.0, 0.5, 1.0, gain, gain_error).is_significant == expected


@pytest.mark.parametrize('scaling', ['sigma_scale', 'sigma_scale_and_temperature'])
def test_a_disabled_sigma_has_the_nll_without_sigma(scaling):
  data = make_data(2.0, n=300)  # Too few images for so small a gain.
  fitted = calibration.fit(data, scaling)
  assert not fitted.is_significant and fitted.nll < data.nll(0.0) - 1e-3
  disabled = calibration.fit_significant(data, scaling)
  assert (disabled.sigma_scale, disabled.temperature) == (0.0, 1.0)
  assert disabled.nll == pytest.approx(nll_by_hand(data, 0.0), rel=1e-5)
  assert (disabled.gain, disabled.gain_error) == (fitted.gain, fitted.gain_error)


def test_the_result_is_the_same_each_time():
  assert calibration.fit(make_data(2.0), 'sigma_scale') == calibration.fit(
      make_data(2.0), 'sigma_scale')


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
