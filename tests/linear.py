"""A model with an encoder that NumPy can follow, and data for it."""

import keras
import numpy as np
import tensorflow as tf

from dble_tf.confidence_model import ConfidenceModel
from dble_tf.model import DBLE

IMAGE_SHAPE = (2, 2, 1)
NUM_CLASSES = 4
DIM = 3
SHOTS = 2


def encoder(kernel_regularizer=None):
  """Pixels / 100 times a kernel [4, 3]."""
  return keras.Sequential([
      keras.Input(IMAGE_SHAPE, dtype='uint8'),
      keras.layers.Rescaling(0.01),
      keras.layers.Flatten(),
      keras.layers.Dense(
          DIM, use_bias=False, kernel_regularizer=kernel_regularizer),
  ])


def confidence_model(**arguments):
  """Without dropout and weight decay, so that a step can be worked by hand.

  The scale of the space, where sigma starts, is 0.5.
  """
  model = ConfidenceModel(DIM, **{
      'hidden_units': 5, 'dropout': 0.0, 'weight_decay': 0.0, **arguments})
  model.scale.assign(0.5)
  return model


def make_model(
    rate=0.1, confidence_rate=0.1, compile_arguments=None, **arguments):
  keras.utils.set_random_seed(7)
  model = DBLE(encoder(), NUM_CLASSES, **{
      'num_shots': SHOTS, 'confidence_model': confidence_model(), **arguments})
  model.compile(
      keras.optimizers.SGD(rate, momentum=0.9),
      keras.optimizers.SGD(confidence_rate, momentum=0.9),
      **(compile_arguments or {}))
  return model


def fitted_model(**arguments):
  model = make_model(**arguments)
  model.fit_centers(batches(*some_images()))
  return model


def copy_of(model):
  """The same model and weights, compiled without its optimizers' state."""
  copy = type(model).from_config(model.get_config())
  copy.set_weights(model.get_weights())
  copy.compile()
  return copy


def random_episodes(seed=0, num_episodes=2, num_ways=3, num_images=6):
  return np.random.default_rng(seed).integers(
      256, size=[num_episodes, num_ways, num_images, *IMAGE_SHAPE], dtype=np.uint8)


def separable_episodes():
  """Each class is one grey level times one pixel: the encoder errs on none."""
  batch = np.zeros([1, 3, 6, 4], np.uint8)
  for way in range(3):
    batch[:, way, :, way] = 250
  return batch.reshape(1, 3, 6, *IMAGE_SHAPE)


def some_images(n=40, seed=1):
  """Random images and, in turn, the classes 0 to 3."""
  rng = np.random.default_rng(seed)
  images = rng.integers(256, size=[n, *IMAGE_SHAPE], dtype=np.uint8)
  return images, np.arange(n) % NUM_CLASSES


def class_images(n=40, seed=1):
  """Random images whose pixel of their class, 0 to 3 in turn, is brighter."""
  rng = np.random.default_rng(seed)
  class_ids = np.arange(n) % NUM_CLASSES
  images = rng.integers(200, size=[n, 4])
  images[np.arange(n), class_ids] += 55
  return images.reshape(n, *IMAGE_SHAPE).astype(np.uint8), class_ids


def batches(images, class_ids, batch_size=16):
  return tf.data.Dataset.from_tensor_slices((images, class_ids)).batch(batch_size)


def class_means(model, images, class_ids):
  h = model.encoder.predict(images, verbose=0)
  return [h[class_ids == c].mean(axis=0) for c in range(NUM_CLASSES)]


def weights(model):
  return [weight.numpy() for weight in model.weights]


def some_batches(seed=1):
  return batches(*some_images(seed=seed))


def fit(model, epochs=1, steps=3, **arguments):
  episodes = tf.data.Dataset.from_tensors(random_episodes()).repeat()
  return model.fit(
      episodes, epochs=epochs, steps_per_epoch=steps, verbose=0, **arguments)
