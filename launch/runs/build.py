"""The flags -> devices, data, training data and a compiled model."""

import contextlib

import keras
import tensorflow as tf
from absl import flags

from dble_tf import data
from dble_tf.classifier import Classifier
from dble_tf.training import strategies

from . import methods


def make_strategy(values: flags.FlagValues) -> tf.distribute.Strategy:
  """The strategy of the flags; make it before TensorFlow computes anything."""
  return strategies.make_strategy(
      values.strategy, values.tpu, values.num_virtual_devices)


def load_dataset(values: flags.FlagValues) -> data.Dataset:
  """The data of the flags, divided as they say."""
  return data.load(
      values.dataset, values.data_dir, values.validation_size, values.split_seed,
      threshold_size=values.threshold_size or 0, train_size=values.train_size)


def make_training_data(
    values: flags.FlagValues, dataset: data.Dataset, start: int = 0
) -> tf.data.Dataset:
  """An endless stream of what the method's `fit` takes, from step `start` on."""
  return methods.METHODS[values.method].training_data(values, dataset, start)


def build_model(values: flags.FlagValues, dataset: data.Dataset) -> Classifier:
  """A compiled model with fresh weights."""
  with _dtype_policy(values.dtype_policy):
    return methods.METHODS[values.method].build(values, dataset)


@contextlib.contextmanager
def _dtype_policy(name):
  """Layers made in this context have the policy, if one is given."""
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(name or before)
  try:
    yield
  finally:
    keras.config.set_dtype_policy(before)
