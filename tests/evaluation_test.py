import keras
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from dble_tf import evaluation
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.data import Split
from dble_tf.model import DBLE


@pytest.fixture(scope='module')
def split():
  rng = np.random.default_rng(0)
  class_ids = np.arange(60, dtype=np.int32) % 3
  images = rng.integers(60, size=[60, 2, 2, 1], dtype=np.uint8)
  images[np.arange(60), 0, 0, 0] += (60 * class_ids).astype(np.uint8)
  return Split(images, class_ids)


@pytest.fixture(scope='module')
def model(split):
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([2, 2, 1], dtype='uint8'), keras.layers.Rescaling(0.05),
      keras.layers.Flatten()])
  model = DBLE(encoder, 3, num_shots=1, confidence_model=ConfidenceModel(4))
  model.fit_centers(split.batches(16))
  return model


@pytest.fixture(scope='module')
def predictions(model, split):
  return evaluation.predict(model, model.represent(split.batches(16)))


def test_predictions_hold_distances_to_the_true_and_the_predicted_center(
    model, split, predictions):
  h = split.images.reshape(60, 4) * 0.05
  centers = np.stack([h[split.class_ids == c].mean(axis=0) for c in range(3)])
  to_true = np.linalg.norm(h - centers[split.class_ids], axis=1)
  to_nearest = np.linalg.norm(h[:, np.newaxis] - centers, axis=2).min(axis=1)
  np.testing.assert_allclose(predictions['distance_to_true'], to_true, rtol=1e-3)
  np.testing.assert_allclose(
      predictions['distance_to_predicted'], to_nearest, rtol=1e-3)
  wrong = predictions['label'] != predictions['true_label']
  assert 0 < wrong.sum() < 60
  np.testing.assert_array_equal(to_true > to_nearest + 1e-5, wrong)


def test_sigma_mean_averages_over_dimensions(predictions):
  np.testing.assert_allclose(predictions['sigma_mean'], 1.0, rtol=0.1)
  assert predictions['sigma_mean'].shape == (60,)


def test_a_model_without_sigma_has_no_predictions_of_it(split):
  encoder = keras.Sequential([
      keras.Input([2, 2, 1], dtype='uint8'), keras.layers.Flatten()])
  model = DBLE(encoder, 3, num_shots=1, confidence_model=None)
  model.calibrate(split.batches(16))
  predictions = evaluation.predict(model, model.represent(split.batches(16)))
  assert set(predictions) == {
      'label', 'confidence', 'probabilities', 'true_label', 'distance_to_true',
      'distance_to_predicted'}
  np.testing.assert_array_equal(predictions['true_label'], split.class_ids)


def test_other_probabilities_change_confidences_and_no_label():
  predictions = {
      'label': np.array([2, 0]), 'true_label': np.array([2, 1]),
      'confidence': np.array([0.7, 0.9]), 'distance_to_true': np.array([1.0, 2.0]),
      'probabilities': np.array([[0.1, 0.2, 0.7], [0.9, 0.1, 0.0]])}
  # The label is not the likeliest class of the first image any more.
  other = np.array([[0.5, 0.2, 0.3], [0.6, 0.3, 0.1]])
  changed = evaluation.with_probabilities(predictions, other)
  np.testing.assert_array_equal(changed['confidence'], [0.3, 0.6])
  np.testing.assert_array_equal(changed['probabilities'], other)
  for name in ('label', 'true_label', 'distance_to_true'):
    np.testing.assert_array_equal(changed[name], predictions[name])
  np.testing.assert_array_equal(predictions['confidence'], [0.7, 0.9])


def test_predictions_hold_what_is_told_of_them(predictions):
  assert set(predictions) == {
      'label', 'confidence', 'probabilities', 'true_label', 'distance_to_true',
      'distance_to_predicted', 'sigma_mean'}


def test_figures_agree_with_evaluate_and_scikit_learn(model, split, predictions):
  figures = evaluation.figures(predictions)
  model.compile()
  evaluated = model.evaluate(split.batches(7), return_dict=True, verbose=0)
  for name in ('accuracy', 'ece', 'nll'):
    assert figures[name] == pytest.approx(evaluated[name], rel=1e-4), name
  is_correct = split.class_ids == predictions['label']
  assert figures['failure_auroc'] == pytest.approx(sklearn_metrics.roc_auc_score(
      is_correct, predictions['confidence']))
  assert figures['accuracy'] == sklearn_metrics.accuracy_score(
      split.class_ids, predictions['label'])
  assert figures['nll'] == pytest.approx(sklearn_metrics.log_loss(
      split.class_ids, predictions['probabilities'].astype(np.float64)), rel=1e-4)


def test_a_score_orders_predictions_in_place_of_the_confidence(predictions):
  scores = np.random.default_rng(0).random(60)
  figures = evaluation.figures({**predictions, 'score': scores})
  is_correct = predictions['true_label'] == predictions['label']
  assert figures['failure_auroc'] == pytest.approx(
      sklearn_metrics.roc_auc_score(is_correct, scores))
  plain = evaluation.figures(predictions)
  assert figures['aurc'] != plain['aurc']
  assert figures['ece'] == plain['ece'] and figures['nll'] == plain['nll']


def test_sigma_is_described_by_means_and_by_its_rank_beside_the_distance():
  described = evaluation.sigma_figures({
      'label': np.array([0, 0, 1, 1]), 'true_label': np.array([0, 1, 1, 1]),
      'sigma_mean': np.array([0.1, 0.6, 0.3, 0.2]),
      'distance_to_true': np.array([1.0, 9.0, 2.0, 3.0])})
  # Ranks 1 4 3 2 and 1 4 2 3: 1 - 6 * (1 + 1) / (4 * 15).
  assert described == {
      'mean': pytest.approx(0.3), 'mean_of_right': pytest.approx(0.2),
      'mean_of_wrong': pytest.approx(0.6), 'rank_correlation': pytest.approx(0.8)}


def test_where_there_is_nothing_to_compare_sigma_with_it_says_so():
  described = evaluation.sigma_figures({
      'label': np.array([0, 1]), 'true_label': np.array([0, 1]),
      'sigma_mean': np.array([0.5, 0.5]), 'distance_to_true': np.array([1.0, 2.0])})
  assert described['mean_of_wrong'] is None and described['rank_correlation'] is None

