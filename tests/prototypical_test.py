"""DBLE without a confidence model: the prototypical classifier."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy.spatial import distance

from dble_tf.errors import UserError
from dble_tf.model import DBLE
from dble_tf.serving.export import export
from tests import linear
from tests.linear import batches
from tests.linear import random_episodes
from tests.linear import some_images


def linear_encoder():
  keras.utils.set_random_seed(7)
  return linear.encoder(keras.regularizers.L2(0.1))


def make_model(num_shots=2, squared_scale=None, **compile_arguments):
  model = DBLE(linear_encoder(), 4, num_shots=num_shots, confidence_model=None,
               squared_scale=squared_scale)
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **compile_arguments)
  return model


def fitted_model(**arguments):
  model = make_model(**arguments)
  model.calibrate(batches(*some_images()))
  return model


@pytest.mark.parametrize('num_shots, squared_scale', [(2, None), (None, 0.1)])
def test_the_encoder_learns_as_with_a_confidence_model(num_shots, squared_scale):
  model = make_model(num_shots, squared_scale)
  dble = DBLE(linear_encoder(), 4, num_shots=num_shots, squared_scale=squared_scale)
  dble.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1))
  for step in range(3):
    logs = model.train_on_batch(random_episodes(step), return_dict=True)
    expected = dble.train_on_batch(random_episodes(step), return_dict=True)
    for name in ('prototype_loss', 'error_rate'):
      assert logs[name] == pytest.approx(expected[name], rel=1e-5), name
  np.testing.assert_allclose(
      model.encoder.get_weights()[0], dble.encoder.get_weights()[0], rtol=1e-5)
  assert set(logs) == {'loss', 'prototype_loss', 'error_rate'}


@pytest.mark.parametrize('squared_scale', [None, 0.2])
def test_prediction_follows_equations_3_and_6(squared_scale):
  model = fitted_model(squared_scale=squared_scale)
  images, class_ids = some_images()
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  centers = np.stack([h[class_ids == c].mean(axis=0) for c in range(4)])
  distances = distance.cdist(h, centers)
  expected = special.softmax(
      -distances if squared_scale is None else -0.2 * distances**2, axis=1)
  answers = model.predict(images, verbose=0)
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-3)
  np.testing.assert_array_equal(answers['label'], distances.argmin(axis=1))
  np.testing.assert_allclose(answers['confidence'], expected.max(axis=1), rtol=1e-3)
  np.testing.assert_allclose(answers['distance'], distances.min(axis=1), rtol=1e-3)
  assert 'sigma' not in answers


def test_it_has_no_phi():
  model = make_model()
  assert model.phi == [] and not model.uses_sigma
  assert model.inference_variables == model.theta == model.trainable_variables
  assert not hasattr(model, 'confidence_optimizer')


def test_calibration_fits_the_centers_and_needs_no_held_out_images():
  model = make_model()
  model.calibrate(batches(*some_images()))
  np.testing.assert_allclose(
      model.centers, linear.class_means(model, *some_images()), rtol=1e-4)
  model.require_calibrated()


def test_validation_is_of_the_centers_of_its_moment():
  model = make_model()
  history = model.fit(
      tf.data.Dataset.from_tensors(random_episodes()).repeat(2), verbose=0,
      train_data=batches(*some_images()), validation_data=batches(*some_images(seed=2)))
  copy = linear.copy_of(model)
  copy.fit_centers(batches(*some_images()))
  figures = copy.evaluate(
      batches(*some_images(seed=2)), return_dict=True, verbose=0)
  for name in ('loss', 'accuracy', 'ece', 'nll'):
    assert history.history[f'val_{name}'][0] == pytest.approx(figures[name], rel=1e-5)


def test_an_export_has_distances_and_no_sigma(tmp_path):
  with pytest.raises(UserError, match='no class centers'):
    export(make_model(), tmp_path)
  model = fitted_model()
  served = tf.saved_model.load(str(export(model, tmp_path)))
  images, _ = some_images()
  answers = served.serving_default(images)
  assert set(answers) == {
      'label', 'label_name', 'confidence', 'probabilities', 'distance', 'accept'}
  np.testing.assert_allclose(
      answers['confidence'], model.predict(images, verbose=0)['confidence'], rtol=1e-5)


def test_it_survives_saving_and_goes_on_learning(tmp_path):
  model = make_model(num_shots=None, squared_scale=0.1)
  model.train_on_batch(random_episodes())
  model.fit_centers(batches(*some_images()))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert loaded.num_shots is None and loaded.confidence_model is None
  assert loaded.squared_scale == 0.1
  images, _ = some_images()
  answers = loaded.predict(images, verbose=0)
  for name, expected in model.predict(images, verbose=0).items():
    np.testing.assert_allclose(answers[name], expected)
  for one in (model, loaded):
    one.train_on_batch(random_episodes(1))
  np.testing.assert_allclose(
      loaded.encoder.get_weights()[0], model.encoder.get_weights()[0], rtol=1e-6)


def test_a_step_compiles_under_xla():
  models = make_model(), make_model(jit_compile=True)
  losses = [model.train_on_batch(random_episodes(), return_dict=True)['loss']
            for model in models]
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)
