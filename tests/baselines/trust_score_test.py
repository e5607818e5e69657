import contextlib

import keras
import numpy as np
import pytest
from scipy import optimize
from scipy import special
from sklearn import neighbors

from dble_tf.baselines import trust_score
from dble_tf.baselines import TrustScore
from dble_tf.baselines import Vanilla
from dble_tf.errors import UserError
from dble_tf.serving.export import export


def make_model(encoder, num_points=120, **arguments):
  model = TrustScore(encoder, 4, num_points=num_points, weight_decay=0.0, **arguments)
  model.compile(keras.optimizers.SGD(0.5))
  return model


@pytest.fixture
def calibrated_model(make_encoder, some_batches):
  model = make_model(make_encoder(), sparse_share=0.2, num_neighbors=3)
  model.fit(some_batches(120), epochs=5, verbose=0)
  model.calibrate(some_batches(120), some_batches(80, seed=5))
  return model


def radii_by_hand(points, k):
  """The distance of each point to its k-th neighbor, itself not counted."""
  distances = np.linalg.norm(points[:, np.newaxis] - points, axis=2)
  return np.sort(distances, axis=1)[:, k]


def test_the_sparsest_of_each_class_are_left_out():
  rng = np.random.default_rng(0)
  points = rng.normal(size=[90, 4]) * np.repeat([1, 5, 1], 30)[:, np.newaxis]
  class_ids = np.repeat([0, 1, 2], 30)
  is_kept = trust_score.is_dense(points, class_ids, 0.2, 3)
  for class_id in range(3):
    members = class_ids == class_id
    radii = radii_by_hand(points[members], 3)
    kept = is_kept[members]
    assert kept.sum() == 24
    assert radii[kept].max() < radii[~kept].min()


def test_small_classes_and_a_share_of_zero_keep_everything():
  points, class_ids = np.random.default_rng(0).normal(size=[6, 2]), np.arange(6) // 3
  assert trust_score.is_dense(points, class_ids, 0.5, 3).all()
  assert trust_score.is_dense(points, class_ids, 0.0, 1).all()


def test_scores_are_those_of_nearest_neighbor_trees():
  rng = np.random.default_rng(1)
  points = rng.normal(size=[200, 5]).astype(np.float32)
  classes = rng.integers(3, size=200)
  classes[:20] = -1  # Left out.
  h = rng.normal(size=[40, 5]).astype(np.float32)
  labels = rng.integers(3, size=40)
  nearest = np.stack([
      neighbors.KDTree(points[classes == c]).query(h)[0][:, 0] for c in range(3)], 1)
  rows = np.arange(40)
  to_label = nearest[rows, labels]
  nearest[rows, labels] = np.inf
  expected = nearest.min(axis=1) / to_label
  scores = trust_score.trust_scores(h, labels, points, classes, 3)
  np.testing.assert_allclose(scores, expected, rtol=1e-3)


def test_platt_scaling_maximizes_the_likelihood_of_its_smoothed_targets():
  rng = np.random.default_rng(2)
  scores = rng.normal(size=300)
  is_correct = rng.random(300) < special.expit(2 * scores + 1)
  right, wrong = is_correct.sum(), (~is_correct).sum()
  targets = np.where(is_correct, (right + 1) / (right + 2), 1 / (wrong + 2))

  def loss(x):
    logits = x[0] * scores + x[1]
    return (np.logaddexp(0, logits) - targets * logits).sum()

  expected = optimize.minimize(loss, [0.0, 0.0]).x
  np.testing.assert_allclose(
      trust_score.platt_scaling(scores, is_correct), expected, rtol=0.02)


def test_platt_scaling_of_data_without_errors_is_finite():
  slope, offset = trust_score.platt_scaling(
      np.linspace(0.0, 1.0, 50), np.ones(50, bool))
  # All targets are 51 / 52, whatever the score.
  np.testing.assert_allclose(
      special.expit(slope * np.linspace(0, 1, 5) + offset), 51 / 52, rtol=1e-2)


def test_answers_keep_the_label_and_take_the_confidence_from_the_score(
    calibrated_model, some_data, make_encoder):
  model = calibrated_model
  plain = Vanilla(make_encoder(), 4)
  plain.take_trained(model)
  images, _ = some_data(30, seed=9)
  softmax = plain.predict(images, verbose=0)['probabilities']
  answers = model.predict(images, verbose=0)
  labels = softmax.argmax(axis=1)
  np.testing.assert_array_equal(answers['label'], labels)
  train, class_ids = some_data(120)
  encode = lambda images: model.encoder.predict(images, verbose=0)
  is_kept = trust_score.is_dense(encode(train), class_ids, 0.2, 3)
  assert 90 <= is_kept.sum() < 100
  scores = trust_score.trust_scores(
      encode(images), labels, encode(train)[is_kept], class_ids[is_kept], 4).numpy()
  np.testing.assert_allclose(answers['score'], scores, rtol=1e-3)
  slope, offset = model.platt.numpy()
  assert slope > 0  # Farther from other classes is surer.
  confidence = special.expit(slope * np.log(scores) + offset)
  np.testing.assert_allclose(answers['confidence'], confidence, rtol=1e-3)
  rows = np.arange(30)
  expected = softmax * ((1 - confidence) / (1 - softmax[rows, labels]))[:, np.newaxis]
  expected[rows, labels] = confidence
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-2)
  np.testing.assert_allclose(answers['probabilities'].sum(axis=1), 1.0, rtol=1e-5)


def test_before_calibration_and_after_training_it_answers_as_plain_training(
    calibrated_model, some_data, some_batches, make_encoder, tmp_path):
  calibrated_model.fit(some_batches(120), verbose=0)
  plain = Vanilla(make_encoder(), 4)
  plain.take_trained(calibrated_model)
  images, _ = some_data()
  np.testing.assert_allclose(
      calibrated_model.predict(images, verbose=0)['probabilities'],
      plain.predict(images, verbose=0)['probabilities'], rtol=1e-5)
  with pytest.raises(UserError, match='not calibrated yet'):
    export(calibrated_model, tmp_path)


def test_an_error_of_a_sure_model_costs_no_more_than_it_should(
    calibrated_model, some_data):
  calibrated_model.platt.assign([0.0, 30.0])  # Surer than float32 can say.
  answers = calibrated_model.predict(some_data()[0], verbose=0)
  rows = np.arange(20)
  answers['probabilities'][rows, answers['label']] = 0.0
  np.testing.assert_allclose(
      answers['probabilities'].sum(axis=1), special.expit(-30.0), rtol=1e-3)


def test_what_it_cannot_be_calibrated_with_is_named(make_encoder, some_batches):
  model = make_model(make_encoder())
  with pytest.raises(UserError, match='held_out'):
    model.calibrate(some_batches(120))
  with pytest.raises(UserError, match='num_points=20'):
    model.calibrate(some_batches(20), some_batches(20))


@pytest.mark.parametrize('calibrate', [
    lambda model, train, held_out: model.fit(train, verbose=0, train_data=train),
    lambda model, train, held_out: model.calibrate(train, held_out.repeat())],
    ids=['fit without validation data', 'endless held-out data'])
def test_without_platt_scaling_it_is_not_calibrated(
    calibrate, make_encoder, some_data, some_batches):
  model = make_model(make_encoder())
  with contextlib.suppress(UserError):
    calibrate(model, some_batches(120), some_batches(80, seed=5))
  with pytest.raises(UserError, match='not calibrated yet'):
    model.require_calibrated()
  answers = model.predict(some_data()[0], verbose=0)
  np.testing.assert_allclose(
      answers['confidence'], special.softmax(answers['logits'], axis=1).max(axis=1),
      rtol=1e-5)


def test_validation_is_of_the_neighbors_of_its_moment(make_encoder, some_batches):
  model = make_model(make_encoder())
  train, held_out = some_batches(120), some_batches(80, seed=5)
  history = model.fit(
      train, epochs=2, verbose=0, train_data=train, validation_data=held_out).history
  model.require_calibrated()
  figures = model.evaluate(held_out, return_dict=True, verbose=0)
  model.forget_calibration()
  model.calibrate(train, held_out)
  again = model.evaluate(held_out, return_dict=True, verbose=0)
  for name in ('loss', 'accuracy', 'ece'):
    assert history[f'val_{name}'][-1] == pytest.approx(figures[name], rel=1e-5)
    assert again[name] == pytest.approx(figures[name], rel=1e-5)


def test_it_survives_saving(calibrated_model, some_data, check_roundtrip):
  loaded = check_roundtrip(calibrated_model, some_data(), some_data(seed=1)[0])
  assert (loaded.num_points, loaded.sparse_share, loaded.num_neighbors) == (120, 0.2, 3)
