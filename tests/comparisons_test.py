import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from dble_tf import comparisons
from dble_tf import evaluation


def make_predictions(n=300, num_classes=4, seed=0, decimals=None, **arrays):
  """Answers whose probabilities are, by default, those of their classes."""
  rng = np.random.default_rng(seed)
  probabilities = rng.dirichlet(np.ones(num_classes), size=n).astype(np.float32)
  true_label = (rng.random([n, 1]) > probabilities.cumsum(axis=1)).sum(axis=1)
  label = probabilities.argmax(axis=1)
  confidence = probabilities.max(axis=1)
  if decimals is not None:
    confidence = confidence.round(decimals)
  return {'true_label': np.minimum(true_label, num_classes - 1), 'label': label,
          'probabilities': probabilities, 'confidence': confidence, **arrays}


def resampled(predictions, indices):
  return {name: values[indices] for name, values in predictions.items()}


def assert_figures(predictions, indices):
  """Compares the figures of a resample with those of its images."""
  counts = np.bincount(indices, minlength=len(predictions['label']))[np.newaxis]
  actual = comparisons.resampled_figures(predictions, counts)
  expected = evaluation.figures(resampled(predictions, indices))
  assert set(actual) == set(expected)
  for name, value in expected.items():
    assert actual[name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize('decimals', [None, 1])  # One decimal: many equal confidences.
def test_figures_are_those_of_the_evaluation(decimals):
  assert_figures(make_predictions(decimals=decimals), np.arange(300))


@pytest.mark.parametrize('decimals', [None, 1])
@pytest.mark.parametrize('seed', range(3))
def test_figures_of_a_resample_are_those_of_its_images(decimals, seed):
  indices = np.random.default_rng(seed).integers(300, size=300)
  assert_figures(make_predictions(decimals=decimals), indices)


def test_a_score_decides_the_order_where_there_is_one():
  predictions = make_predictions(score=np.random.default_rng(1).normal(size=300))
  assert_figures(predictions, np.arange(300))


def test_confidences_0_and_1_and_those_on_the_edges_of_bins_are_counted():
  confidence = np.append(np.arange(16) / 15, [0.0, 1.0]).astype(np.float32)
  predictions = make_predictions(n=18, confidence=confidence)
  assert_figures(predictions, np.arange(18))


def test_figures_of_three_images_by_hand():
  predictions = {
      'true_label': np.array([0, 1, 1]), 'label': np.array([0, 1, 0]),
      'probabilities': np.array([[0.8, 0.2], [0.5, 0.5], [0.7, 0.3]]),
      'confidence': np.array([0.8, 0.5, 0.7])}
  # The images themselves, and the first one twice instead of the second.
  figures = comparisons.resampled_figures(predictions, np.array([[1, 1, 1], [2, 0, 1]]))
  np.testing.assert_allclose(figures['accuracy'], [2 / 3, 2 / 3])
  np.testing.assert_allclose(figures['ece'], [(0.2 + 0.5 + 0.7) / 3, (0.4 + 0.7) / 3])
  np.testing.assert_allclose(
      figures['nll'], -np.log([0.8 * 0.5 * 0.3, 0.8 * 0.8 * 0.3]) / 3)
  np.testing.assert_allclose(
      figures['brier'], [(0.08 + 0.5 + 0.98) / 3, (0.16 + 0.98) / 3])
  # The wrong one is between the two right ones, then below both copies.
  np.testing.assert_allclose(figures['failure_auroc'], [0.5, 1.0])
  np.testing.assert_allclose(figures['aurc'], [(0 + 1 / 2 + 1 / 3) / 3, (1 / 3) / 3])


def test_weights_of_scikit_learn_are_counts():
  predictions = make_predictions(decimals=1)
  counts = comparisons.resample(300, 20, np.random.default_rng(0))
  is_correct = predictions['label'] == predictions['true_label']
  actual = comparisons.resampled_figures(predictions, counts)['failure_auroc']
  expected = [sklearn_metrics.roc_auc_score(
      is_correct, predictions['confidence'], sample_weight=weights)
              for weights in counts]
  np.testing.assert_allclose(actual, expected)


def test_without_errors_there_is_no_auroc_but_a_perfect_aurc():
  predictions = make_predictions()
  predictions['true_label'] = predictions['label']
  figures = comparisons.resampled_figures(predictions, np.ones([1, 300], int))
  assert np.isnan(figures['failure_auroc']) and figures['aurc'] == 0.0


def test_resamples_are_as_large_as_the_images():
  counts = comparisons.resample(50, 2000, np.random.default_rng(0))
  assert counts.shape == (2001, 50) and (counts[0] == 1).all()
  assert (counts.sum(axis=1) == 50).all()
  # Each image is drawn once on average, and not at all with probability (1 - 1/n)^n.
  np.testing.assert_allclose(counts[1:].mean(axis=0), 1.0, atol=0.1)
  assert (counts[1:] == 0).mean() == pytest.approx((1 - 1 / 50)**50, abs=0.01)


def test_a_method_does_not_differ_from_itself():
  counts = comparisons.resample(300, 50, np.random.default_rng(0))
  figures = comparisons.resampled_figures(make_predictions(), counts)
  for values in figures.values():
    difference = comparisons.paired_difference([values], [values])
    assert difference == (0.0, 0.0, 0.0) and not difference.is_significant


def test_a_difference_is_the_mean_over_seeds_with_resamples_mirrored():
  first = np.array([[3.0, 3.5, 2.5, 3.0], [5.0, 5.0, 5.0, 7.0]])
  second = np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
  value, low, high = comparisons.paired_difference(first, second)
  assert value == 2.5  # Of 2 and 3; the resamples are 2.75, 2.25 and 3.5.
  assert 2 * 2.5 - 3.5 < low < high < 2 * 2.5 - 2.25
  np.testing.assert_allclose(
      [5 - low, 5 - high], np.percentile([2.75, 2.25, 3.5], [97.5, 2.5]))


def test_swapped_methods_differ_by_as_much_the_other_way():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=[2, 3, 101])
  one = comparisons.paired_difference(first, second)
  other = comparisons.paired_difference(second, first)
  np.testing.assert_allclose([one.value, one.low, one.high],
                             [-other.value, -other.high, -other.low])


def test_resamples_without_a_figure_do_not_count():
  values = np.array([[1.0, np.nan, 1.2, 0.8]])
  assert comparisons.paired_difference(values, 0 * values) == (
      comparisons.paired_difference(values[:, [0, 2, 3]], np.zeros([1, 3])))
  assert comparisons.paired_difference([[np.nan, 1.0]], [[0.0, 0.0]]) is None


@pytest.mark.parametrize('low, high, expected', [
    (0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.2, False), (0.0, 0.0, False)])
def test_an_interval_that_excludes_zero_is_significant(low, high, expected):
  assert comparisons.Difference(0.1, low, high).is_significant is expected


def test_intervals_hold_the_true_difference_as_often_as_they_say():
  # Two methods that are right with probabilities 0.8 and 0.7, not independently.
  rng = np.random.default_rng(0)
  num_trials, n, hits = 300, 200, 0
  for _ in range(num_trials):
    luck = rng.random(n)
    correct = [luck < 0.8, np.where(rng.random(n) < 0.5, luck, rng.random(n)) < 0.7]
    counts = comparisons.resample(n, 200, rng)
    figures = [
        [comparisons.resampled_figures({
            'true_label': np.zeros(n, int), 'label': 1 - one.astype(int),
            'confidence': np.full(n, 0.75), 'probabilities': np.full([n, 2], 0.5),
        }, counts)['accuracy']] for one in correct]
    difference = comparisons.paired_difference(*figures)
    hits += difference.low <= 0.1 <= difference.high
  # Three standard errors of 95 % of 300 trials are 3.8 %.
  assert hits / num_trials == pytest.approx(0.95, abs=0.04)


def test_the_ece_of_calibrated_confidences_shrinks_with_the_number_of_images():
  rng = np.random.default_rng(0)
  small, large = (comparisons.expected_ece(rng.random(n), rng) for n in (500, 50_000))
  assert small[0] < small[1] and large[0] < large[1]
  assert large[0] == pytest.approx(small[0] / 10, rel=0.15)


def test_the_ece_of_calibrated_confidences_in_one_bin_has_a_closed_form():
  # |mean of n Bernoulli(p) - p| is that of a normal variable: sqrt(2 / pi) sd, and its
  # 95th percentile 1.96 sd.
  mean, percentile = comparisons.expected_ece(
      np.full(2000, 0.7), np.random.default_rng(0), num_draws=4000)
  deviation = np.sqrt(0.7 * 0.3 / 2000)
  assert mean == pytest.approx(np.sqrt(2 / np.pi) * deviation, rel=0.05)
  assert percentile == pytest.approx(1.96 * deviation, rel=0.05)


def test_certain_and_right_is_perfectly_calibrated():
  rng = np.random.default_rng(0)
  assert comparisons.expected_ece(np.ones(10), rng) == (0.0, 0.0)
  assert comparisons.expected_ece(np.zeros(10), rng) == (0.0, 0.0)
