"""A small encoder that NumPy can follow, and data for it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import linear


@pytest.fixture
def make_encoder():
  keras.utils.set_random_seed(3)
  return linear.encoder


@pytest.fixture
def some_data():
  """(n, seed) -> images and class ids 0..3; a class is a pixel that is brighter."""
  def make(n=20, seed=0):
    rng = np.random.default_rng(seed)
    class_ids = rng.integers(4, size=n).astype(np.int32)
    images = rng.integers(200, size=[n, 4])
    images[np.arange(n), class_ids] += 55
    return images.reshape(n, *linear.IMAGE_SHAPE).astype(np.uint8), class_ids

  return make


@pytest.fixture
def some_batches(some_data):
  """(n, seed) -> the same as batches of 16."""
  return lambda n=20, seed=0: tf.data.Dataset.from_tensor_slices(
      some_data(n, seed)).batch(16)


@pytest.fixture
def check_roundtrip(tmp_path):
  """A saved model answers and goes on learning as the one that was saved."""
  def check(model, batch, images):
    model.save(tmp_path / 'model.keras')
    loaded = keras.models.load_model(tmp_path / 'model.keras')
    assert type(loaded) is type(model)
    expected = model.predict(images, verbose=0)
    answers = loaded.predict(images, verbose=0)
    assert set(answers) == set(expected)
    for name in expected:
      np.testing.assert_allclose(answers[name], expected[name], rtol=1e-6, err_msg=name)
    for once_more in (model, loaded):
      once_more.train_on_batch(*batch)
      once_more.train_on_batch(*batch)
    for mine, other in zip(model.theta, loaded.theta):
      np.testing.assert_allclose(mine, other, rtol=1e-6)
    return loaded

  return check
