import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy.spatial import distance

from dble_tf import confidence_models
from dble_tf.serving import export
from dble_tf.errors import UserError
from dble_tf.model import DBLE
from dble_tf.prototypical import Prototypical

IMAGE_SHAPE = (2, 2, 1)


def linear_encoder():
  keras.utils.set_random_seed(7)
  return keras.Sequential([
      keras.Input(IMAGE_SHAPE, dtype='uint8'),
      keras.layers.Rescaling(0.01),
      keras.layers.Flatten(),
      keras.layers.Dense(3, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.1)),
  ])


def make_model(num_shots=2, **compile_arguments):
  model = Prototypical(linear_encoder(), 4, num_shots=num_shots)
  model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **compile_arguments)
  return model


def random_episodes(seed=0):
  return np.random.default_rng(seed).integers(
      256, size=[2, 3, 6, *IMAGE_SHAPE], dtype=np.uint8)


def some_data(n=40):
  rng = np.random.default_rng(1)
  images = rng.integers(256, size=[n, *IMAGE_SHAPE], dtype=np.uint8)
  return images, np.arange(n) % 4


def batches():
  return tf.data.Dataset.from_tensor_slices(some_data()).batch(16)


@pytest.mark.parametrize('num_shots', [2, None])
def test_the_encoder_learns_as_dbles_does(num_shots):
  model = make_model(num_shots)
  dble = DBLE(linear_encoder(), confidence_models.confidence_mlp(3), 4, num_shots=num_shots)
  dble.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1))
  for step in range(3):
    logs = model.train_on_batch(random_episodes(step), return_dict=True)
    expected = dble.train_on_batch(random_episodes(step), return_dict=True)
    for name in ('prototype_loss', 'error_rate'):
      assert logs[name] == pytest.approx(expected[name], rel=1e-5), name
  np.testing.assert_allclose(
      model.encoder.get_weights()[0], dble.encoder.get_weights()[0], rtol=1e-5)
  assert set(logs) == {'loss', 'prototype_loss', 'error_rate'}


def test_prediction_follows_equations_3_and_6():
  model = make_model()
  model.fit_centers(batches())
  images, class_ids = some_data()
  h = images.reshape(-1, 4) * 0.01 @ model.encoder.get_weights()[0]
  centers = np.stack([h[class_ids == c].mean(axis=0) for c in range(4)])
  distances = distance.cdist(h, centers)
  expected = special.softmax(-distances, axis=1)
  answers = model.predict(images, verbose=0)
  np.testing.assert_allclose(answers['probabilities'], expected, rtol=1e-3)
  np.testing.assert_array_equal(answers['label'], distances.argmin(axis=1))
  np.testing.assert_allclose(answers['confidence'], expected.max(axis=1), rtol=1e-3)
  np.testing.assert_allclose(answers['distance'], distances.min(axis=1), rtol=1e-3)
  assert 'sigma' not in answers


def test_completing_fits_centers_where_there_are_none():
  model = make_model()
  model.complete(batches())
  images, class_ids = some_data()
  h = model.encoder.predict(images, verbose=0)
  expected = [h[class_ids == c].mean(axis=0) for c in range(4)]
  np.testing.assert_allclose(model.centers, expected, rtol=1e-4)
  model.centers.assign(np.ones([4, 3]))  # As if fitted on other data.
  model.complete(batches())
  np.testing.assert_array_equal(model.centers, np.ones([4, 3]))


def test_an_export_has_distances_and_no_sigma(tmp_path):
  model = make_model()
  with pytest.raises(UserError, match='no class centers'):
    export.export(model, tmp_path)
  model.fit_centers(batches())
  served = tf.saved_model.load(str(export.export(model, tmp_path)))
  images, _ = some_data()
  answers = served.serving_default(images)
  assert set(answers) == {
      'label', 'label_name', 'confidence', 'probabilities', 'distance', 'accept'}
  np.testing.assert_allclose(
      answers['confidence'], model.predict(images, verbose=0)['confidence'], rtol=1e-5)


def test_it_survives_saving_and_goes_on_learning(tmp_path):
  model = make_model(num_shots=None)
  model.train_on_batch(random_episodes())
  model.fit_centers(batches())
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert loaded.num_shots is None
  images, _ = some_data()
  for name, expected in model.predict(images, verbose=0).items():
    np.testing.assert_allclose(loaded.predict(images, verbose=0)[name], expected)
  for one in (model, loaded):
    one.train_on_batch(random_episodes(1))
  np.testing.assert_allclose(
      loaded.encoder.get_weights()[0], model.encoder.get_weights()[0], rtol=1e-6)


def test_a_step_compiles_under_xla():
  models = make_model(), make_model(jit_compile=True)
  losses = [model.train_on_batch(random_episodes(), return_dict=True)['loss']
            for model in models]
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
