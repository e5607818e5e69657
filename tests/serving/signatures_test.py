import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dble_tf import baselines
from dble_tf.errors import UserError
from dble_tf.serving.signatures import signatures
from tests import tiny


@pytest.fixture(scope='module')
def model():
  return tiny.model()


def test_images_and_files_get_the_models_answers_with_names(model):
  threshold = tiny.median_confidence(model)
  available = signatures(model, tiny.CLASS_NAMES, threshold)
  assert list(available) == ['serving_default', 'serving_bytes', 'embed']
  expected = tiny.expected_answers(model, threshold)
  assert 0 < expected['accept'].sum() < 9
  images = tf.constant(tiny.IMAGES)
  tiny.assert_same(
      tf.function(available['serving_default'].function)(images), expected)
  files = tf.constant(tiny.as_png(tiny.IMAGES))
  tiny.assert_same(tf.function(available['serving_bytes'].function)(files), expected)
  np.testing.assert_allclose(
      tf.function(available['embed'].function)(images)['representation'],
      model.encoder.predict(tiny.IMAGES, verbose=0), rtol=1e-4, atol=1e-5)


def test_a_name_for_each_class_is_required(model):
  with pytest.raises(UserError, match='3 classes, but class_names has 2'):
    signatures(model, ['a', 'b'], 0.0)


def plain(shape, dtype):
  """A classifier whose logits are the pixels times their weights."""
  encoder = keras.Sequential([
      keras.Input(shape, dtype=dtype), keras.layers.Flatten(),
      keras.layers.Dense(2, kernel_initializer='ones')])
  return baselines.Vanilla(encoder, 2)


def test_images_of_two_channels_have_no_signature_for_files():
  assert set(signatures(plain([2, 2, 2], 'uint8'), 'ab', 0.0)) == {
      'serving_default', 'embed'}


@pytest.mark.parametrize('name', ['serving_default', 'embed'])
@pytest.mark.parametrize('value, message', [
    (np.nan, 'images must be finite'),
    (np.inf, 'images must be finite'),
    # Finite, but their sum is not.
    (3e38, 'is not finite')])
def test_no_answer_is_nan(name, value, message):
  available = signatures(plain([2, 2, 1], 'float32'), 'ab', 0.0)
  function = tf.function(available[name].function)
  images = np.zeros([3, 2, 2, 1], np.float32)
  assert all(np.isfinite(values).all() for values in function(images).values()
             if values.dtype.is_floating)
  images[1] = value
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    function(images)


@pytest.fixture(scope='module')
def of_floats():
  available = signatures(plain([2, 2, 1], 'float32'), 'ab', 0.0)
  return {name: tf.function(signature.function)
          for name, signature in available.items()}


@settings(max_examples=60, deadline=None)
@given(arrays.arrays(np.float32, (3, 2, 2, 1), elements=st.floats(width=32)))
def test_any_floats_get_finite_answers_or_an_error(of_floats, images):
  for name in ('serving_default', 'embed'):
    try:
      outputs = of_floats[name](images)
    except tf.errors.InvalidArgumentError as error:
      assert 'finite' in str(error)
    else:
      assert np.isfinite(images).all()
      assert all(np.isfinite(values).all() for values in outputs.values()
                 if values.dtype.is_floating)


def test_files_reach_an_encoder_of_floats_as_numbers_up_to_255():
  model = plain([2, 2, 1], 'float32')
  available = signatures(model, 'ab', 0.0)
  image = np.array([[[0], [1]], [[200], [255]]], np.uint8)
  from_file, from_image = (
      tf.function(available[name].function)(tf.constant([value]))
      for name, value in (('serving_bytes', tf.io.encode_png(image).numpy()),
                          ('serving_default', image.astype(np.float32))))
  np.testing.assert_allclose(from_file['probabilities'], from_image['probabilities'])
