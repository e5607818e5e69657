import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy.spatial import distance
from sklearn import metrics as sklearn_metrics

from dble_tf import confidence
from dble_tf import calibration
from dble_tf.baselines import temperature_scaling


def make_data(spread, n=1500, dim=4, num_samples=20, sigma=0.5):
  """Two classes around their centers, more or less far."""
  rng = np.random.default_rng(0)
  centers = np.stack([np.zeros(dim), np.full(dim, 2.0)]).astype(np.float32)
  class_ids = np.arange(n) % 2
  h = (centers[class_ids] + spread * rng.normal(size=[n, dim])).astype(np.float32)
  return calibration.HeldOut(
      h, np.full_like(h, sigma), class_ids, tf.constant(centers),
      confidence.standard_noise([num_samples, dim], [0, 0]))


def nll_by_hand(data, sigma_scale, temperature=1.0):
  likelihoods = np.mean([
      special.softmax(-distance.cdist(
          data.h + sigma_scale * data.sigma * e, data.centers) / temperature, axis=1)
      for e in data.noise.numpy()], axis=0)
  return -np.log(likelihoods[np.arange(len(data.h)), data.class_ids]).mean()


@pytest.mark.parametrize('sigma_scale, temperature', [(0.0, 1.0), (0.7, 1.0), (2.0, 0.4)])
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
  ones, fives = (
      calibration.fit(make_data(2.0, sigma=sigma), 'sigma_scale') for sigma in (0.1, 0.5))
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
  assert calibration.fit(data, 'none') == (1.0, 1.0, data.nll(1.0))


def test_a_temperature_alone_is_that_of_temperature_scaling():
  data = make_data(2.0)
  fitted = calibration.fit_temperature(lambda temperature: data.nll(0.0, temperature))
  expected = temperature_scaling.fit_temperature(
      -distance.cdist(data.h, data.centers), data.class_ids)
  assert fitted.temperature == pytest.approx(expected, rel=0.02)
  assert fitted.nll == pytest.approx(nll_by_hand(data, 0.0, expected), abs=1e-5)


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


def test_what_is_no_number_is_never_the_best():
  fitted = calibration.fit_sigma_scale(
      lambda scale: np.nan if scale < 0.5 else (np.log(scale) - 1)**2)
  assert fitted.sigma_scale == pytest.approx(np.e, rel=0.02)


@pytest.mark.parametrize('gains, expected', [
    ([0.3, 0.1, 0.3, 0.1], True),  # 0.2, give or take 0.06.
    ([0.9, -0.7, 0.9, -0.7], False),  # 0.1, give or take 0.46.
    ([-0.3, -0.1, -0.3, -0.1], False)])
def test_sigma_pays_where_its_gain_is_above_the_standard_error(gains, expected):
  class Gains:
    def nlls(self, sigma_scale, temperature=1.0):
      return 1.0 - np.array(gains) if (sigma_scale, temperature) == (2.0, 0.5) else (
          np.ones(4) if (sigma_scale, temperature) == (0.0, 1.0) else None)

  assert calibration.pays(Gains(), calibration.Fitted(2.0, 0.5, np.nan)) == expected


def test_halves_have_as_many_of_each_class():
  class_ids = np.array([0, 1] * 10 + [2] * 4)
  first, second = calibration.halves(class_ids)
  assert sorted([*first, *second]) == list(range(24))
  np.testing.assert_array_equal(np.bincount(class_ids[first]), [5, 5, 2])
  np.testing.assert_array_equal(np.bincount(class_ids[second]), [5, 5, 2])


def test_the_result_is_the_same_each_time():
  assert calibration.fit(make_data(2.0), 'sigma_scale') == calibration.fit(
      make_data(2.0), 'sigma_scale')


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
