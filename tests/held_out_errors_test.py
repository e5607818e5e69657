import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import confidence_models
from dble_tf import calibration
from dble_tf.errors import UserError
from dble_tf.model import DBLE


def make_model(confidence_training):
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([2, 1, 1], dtype='uint8'), keras.layers.Rescaling(0.01),
      keras.layers.Flatten()])
  model = DBLE(
      encoder, [confidence_models.confidence_mlp(2, dropout=0.0, weight_decay=0.0)
                for _ in confidence_training],
      2, num_shots=1, confidence_training=confidence_training)
  model.compile(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.05))
  model.centers.assign([[0, 0], [2, 2]])
  model.center_counts.assign([1, 1])
  return model


def batches(greys, class_ids, copies=40):
  images = np.repeat(np.array(greys, np.uint8), copies)[:, np.newaxis, np.newaxis]
  data = (np.repeat(images[..., np.newaxis], 2, axis=1), np.repeat(class_ids, copies))
  return tf.data.Dataset.from_tensor_slices(
      data).batch(16)


def sigma_at(candidate, h):
  return float(candidate.predict(np.array([[h, h]]), verbose=0).mean())


def test_only_candidates_that_ask_for_it_learn_from_held_out_errors():
  model = make_model(['held_out', 'errors'])
  before = [one.get_weights() for one in model.candidates]
  # A third of the images lies at the other class's center.
  model.fit_sigma_scale(batches([0, 200, 200], [0, 1, 0]))
  moved = [any(not np.array_equal(a, b) for a, b in zip(old, one.get_weights()))
           for old, one in zip(before, model.candidates)]
  assert moved == [True, False]
  # Noise is what helps a representation at the wrong center.
  assert sigma_at(model.candidates[0], 2.0) > 1.2 * sigma_at(model.candidates[1], 2.0)


def test_without_errors_there_is_nothing_to_learn():
  model = make_model(['held_out'])
  before = model.confidence_model.get_weights()
  model.fit_sigma_scale(batches([0, 200], [0, 1]))
  for old, new in zip(before, model.confidence_model.get_weights()):
    np.testing.assert_array_equal(old, new)


def test_it_does_not_learn_beside_theta():
  model = make_model(['held_out'])
  before = model.confidence_model.get_weights()
  swapped = np.array([0, 250, 250, 0], np.uint8).reshape(1, 2, 2, 1, 1, 1)
  logs = model.train_on_batch(np.repeat(swapped, 2, axis=3), return_dict=True)
  assert logs['error_rate'] == 1
  for old, new in zip(before, model.confidence_model.get_weights()):
    np.testing.assert_array_equal(old, new)


def test_what_it_learned_from_does_not_scale_it():
  model, class_ids = make_model(['held_out']), np.arange(80) % 3
  h = np.arange(160.0, dtype=np.float32).reshape(80, 2)
  _, unseen = calibration.halves(class_ids)
  for data in model.held_out_data(h, class_ids, model.confidence_model, 'held_out'):
    np.testing.assert_array_equal(data.h, h[unseen])
    np.testing.assert_array_equal(data.class_ids, class_ids[unseen])
  # Others are scaled on everything, and judged on the same half.
  scaled_on, judged_on = model.held_out_data(h, class_ids, np.ones_like, 'errors')
  np.testing.assert_array_equal(scaled_on.h, h)
  np.testing.assert_array_equal(judged_on.h, h[unseen])


def test_the_others_are_scaled_as_they_would_be_without_it():
  # One half of class 1 lies at its center, the other at the wrong one.
  held_out = batches([0] * 40 + [200, 0] * 40, [0] * 40 + [1] * 80, copies=1)
  alone, beside = make_model(['errors']), make_model(['errors', 'held_out'])
  expected, = alone.fit_sigma_scale(held_out)
  fitted = beside.fit_sigma_scale(held_out)
  assert (beside.chosen, fitted[0].sigma_scale) == (
      0, pytest.approx(expected.sigma_scale, rel=1e-3))


def test_a_model_that_is_not_compiled_says_so():
  model = make_model(['held_out'])
  other = DBLE.from_config(model.get_config())
  other.set_weights(model.get_weights())
  with pytest.raises(UserError, match='compile the model first'):
    other.fit_sigma_scale(batches([0, 200], [0, 1]))


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
