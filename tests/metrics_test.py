import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn import calibration
from sklearn import metrics as sklearn_metrics

from dble_tf import metrics


def ece(is_correct, confidence, num_bins=15):
  bins = metrics.calibration_bins(is_correct, confidence, num_bins)
  return float(metrics.expected_calibration_error(bins))


def random_predictions(n=2000, num_classes=7):
  rng = np.random.default_rng(0)
  probabilities = rng.dirichlet(np.full(num_classes, 0.3), size=n)
  class_ids = rng.integers(num_classes, size=n)
  return class_ids, probabilities.astype(np.float32)


def test_ece_of_an_example_worked_by_hand():
  # Two bins. (0, 0.5]: confidences 0.3 and 0.5, one correct: gap |0.8 - 1| = 0.2.
  # (0.5, 1]: 0.6, 0.8 and 1.0, two correct: |2.4 - 2| = 0.4. (0.2 + 0.4) / 5.
  result = ece([True, False, False, True, True], [0.3, 0.5, 0.6, 0.8, 1.0], num_bins=2)
  assert result == pytest.approx(0.12)


def test_confidence_zero_and_one_fall_into_the_outer_bins():
  bins = metrics.calibration_bins([False, True], [0.0, 1.0], num_bins=15).numpy()
  np.testing.assert_array_equal(bins[0], [1] + 13 * [0] + [1])


def test_certain_and_correct_is_perfectly_calibrated():
  assert ece([True] * 4, [1.0] * 4) == 0
  assert ece([False] * 4, [1.0] * 4) == 1


def test_ece_agrees_with_tensorflow_probability():
  class_ids, probabilities = random_predictions()
  labels = probabilities.argmax(axis=1)
  expected = tfp.stats.expected_calibration_error(
      15, logits=np.log(probabilities), labels_true=class_ids,
      labels_predicted=labels)
  result = ece(labels == class_ids, probabilities.max(axis=1))
  assert result == pytest.approx(float(expected), rel=1e-4)


def test_bins_agree_with_scikit_learn():
  rng = np.random.default_rng(1)
  confidence = rng.random(3000).astype(np.float32)
  is_correct = rng.random(3000) < confidence
  weights, confidences, corrects = metrics.calibration_bins(is_correct, confidence)
  accuracy, mean_confidence = calibration.calibration_curve(
      is_correct, confidence, n_bins=15)
  np.testing.assert_allclose(corrects / weights, accuracy, rtol=1e-4)
  np.testing.assert_allclose(confidences / weights, mean_confidence, rtol=1e-4)


def test_a_weight_of_two_counts_as_two_examples():
  twice = metrics.calibration_bins([True, False, False], [0.9, 0.4, 0.4])
  weighted = metrics.calibration_bins([True, False], [0.9, 0.4], sample_weight=[1, 2])
  np.testing.assert_allclose(weighted, twice)


def test_nll_agrees_with_scikit_learn():
  class_ids, probabilities = random_predictions()
  probabilities = np.clip(probabilities, 1e-6, 1)
  probabilities /= probabilities.sum(axis=1, keepdims=True)
  result = metrics.negative_log_likelihoods(class_ids, probabilities)
  expected = sklearn_metrics.log_loss(class_ids, probabilities.astype(np.float64))
  assert float(tf.reduce_mean(result)) == pytest.approx(expected, rel=1e-4)


def test_nll_of_an_impossible_class_is_large_and_finite():
  result = metrics.negative_log_likelihoods([0, 1], [[0.0, 1.0], [0.0, 1.0]])
  assert 80 < result[0] < 100
  assert result[1] == 0


def test_the_brier_score_sums_over_classes():
  class_ids, probabilities = random_predictions()
  expected = np.mean([
      sum((p - (c == class_id))**2 for c, p in enumerate(row))
      for class_id, row in zip(class_ids, probabilities)])
  assert metrics.brier_score(class_ids, probabilities) == pytest.approx(expected)
  assert metrics.brier_score(np.array([1]), np.array([[1.0, 0.0]])) == 2


def test_failure_auroc_is_the_fraction_of_pairs_in_order():
  rng = np.random.default_rng(0)
  is_correct = rng.random(60) < 0.7
  scores = np.round(rng.random(60), 1)  # With ties.
  pairs = [(right > wrong) + 0.5 * (right == wrong)
           for right in scores[is_correct] for wrong in scores[~is_correct]]
  assert metrics.failure_auroc(is_correct, scores) == pytest.approx(np.mean(pairs))


def test_failure_auroc_needs_correct_and_wrong_predictions():
  assert metrics.failure_auroc(np.array([True, True]), np.array([0.1, 0.2])) is None
  assert metrics.failure_auroc(np.array([False]), np.array([0.1])) is None


def test_risk_coverage_averages_the_error_rates_of_the_top_scores():
  is_correct = np.array([False, True, True, False])
  scores = np.array([0.1, 0.9, 0.5, 0.7])
  # By falling score: correct, wrong, correct, wrong.
  expected = np.mean([0, 1 / 2, 1 / 3, 2 / 4])
  assert metrics.area_under_risk_coverage(is_correct, scores) == pytest.approx(expected)


def test_risk_coverage_of_ties_is_the_mean_over_their_orders():
  is_correct = np.array([True, False, False, True, True])
  scores = np.array([0.9, 0.5, 0.5, 0.5, 0.1])
  areas = []
  for order in itertools.permutations([1, 2, 3]):
    errors = ~is_correct[[0, *order, 4]]
    areas.append(np.mean(np.cumsum(errors) / np.arange(1, 6)))
  assert metrics.area_under_risk_coverage(is_correct, scores) == pytest.approx(
      np.mean(areas))


def test_streaming_ece_does_not_depend_on_the_batching():
  class_ids, probabilities = random_predictions()
  is_correct = probabilities.argmax(axis=1) == class_ids
  confidence = probabilities.max(axis=1)
  metric = metrics.ExpectedCalibrationError()
  for i in range(0, len(class_ids), 33):
    metric.update_state(is_correct[i:i + 33], confidence[i:i + 33])
  assert float(metric.result()) == pytest.approx(ece(is_correct, confidence), rel=1e-4)
  metric.reset_state()
  assert float(metric.result()) == 0


def test_the_metric_round_trips_through_its_config():
  metric = keras.metrics.deserialize(
      keras.metrics.serialize(metrics.ExpectedCalibrationError(num_bins=7)))
  assert metric.num_bins == 7
  assert metric.bins.shape == (3, 7)
