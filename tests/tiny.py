"""A DBLE of small grey images with fitted centers, and images for it."""

import io

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from dble_tf import encoders
from dble_tf.model import DBLE

IMAGES = np.random.default_rng(0).integers(256, size=[9, 4, 4, 1], dtype=np.uint8)
CLASS_NAMES = ('ant', 'bée', 'cat')


def unfitted_model():
  return DBLE(encoders.mlp([4, 4, 1], 8), 3, num_shots=1, scaling='none')


def model():
  keras.utils.set_random_seed(0)
  result = unfitted_model()
  result.fit_centers(
      tf.data.Dataset.from_tensor_slices((IMAGES, np.arange(9) % 3)).batch(4))
  return result


def expected_answers(model, threshold):
  """What every way to ask an export must give for `IMAGES`."""
  predicted = model.predict(IMAGES, verbose=0)
  return {
      **{name: predicted[name]
         for name in ('label', 'confidence', 'probabilities', 'distance')},
      'sigma': predicted['sigma'].mean(axis=-1),
      'label_name': np.array(
          [CLASS_NAMES[label].encode() for label in predicted['label']], object),
      'accept': predicted['confidence'] >= threshold,
  }


def median_confidence(model):
  """A threshold that refuses some of the images, and is no confidence of any."""
  low, high = np.sort(model.predict(IMAGES, verbose=0)['confidence'])[4:6]
  assert high - low > 1e-4
  return float((low + high) / 2)


def as_png(images):
  """Files of images [n, H, W, 1]; not by TensorFlow, which must be idle at imports."""
  files = [io.BytesIO() for _ in images]
  for image, file in zip(images, files):
    Image.fromarray(image[..., 0]).save(file, 'png')
  return [file.getvalue() for file in files]


def assert_same(outputs, expected, rows=slice(None)):
  assert set(outputs) == set(expected)
  for name, values in expected.items():
    if values.dtype.kind == 'f':
      np.testing.assert_allclose(outputs[name], values[rows], rtol=1e-4, err_msg=name)
    else:
      np.testing.assert_array_equal(outputs[name], values[rows], err_msg=name)
