"""Batch norm's statistics for weights that training did not pass through.

Averages of weights are such: the statistics that training has kept are those of other
weights.
"""

import keras
import tensorflow as tf

from dble_tf import checks
from dble_tf import encoders
from dble_tf import replicas


def moving_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
  """The batch-norm layers of a model whose statistics training moves."""
  return [layer for layer in encoders.batch_norm_layers(model)
          if layer.trainable and layer.momentum < 1]


def fit_statistics(
    model: keras.Model, train: tf.data.Dataset, verbose: int = 0) -> None:
  """Sets the statistics to those of the current weights.

  They are the means over batches, weighted by their sizes, of the mean and the variance
  that each batch is normalized with in training. With several replicas that is each
  replica's part of a batch, unless batch norm is synchronized.

  Args:
    model: a `Classifier`.
    train: batches of (images, class ids), the training set without augmentation.
    verbose: 1 shows a progress bar.
  """
  checks.require_labelled_batches(train)
  seeds = [variable for variable in model.non_trainable_variables
           if variable.name == 'seed_generator_state']
  seed_values = [keras.ops.convert_to_numpy(seed) for seed in seeds]
  variables = _statistics(model)
  num_images, sums = 0, [0.0] * len(variables)
  for size, statistics in replicas.map_batches(
      _batch_statistics, model, train, verbose):
    if size > 0:  # A replica may have no part of the last batch.
      num_images += int(size)
      sums = [total + float(size) * value.numpy().astype('float64')
              for total, value in zip(sums, statistics)]
  for variable, total in zip(variables, sums):
    variable.assign(total / num_images)
  for seed, value in zip(seeds, seed_values):  # Of dropout, which has run too.
    seed.assign(value)


def _statistics(model):
  return [variable for layer in moving_layers(model)
          for variable in (layer.moving_mean, layer.moving_variance)]


def _batch_statistics(model, images, class_ids):
  """The size of a batch, and the statistics that it is normalized with."""
  for variable in _statistics(model):
    variable.assign(tf.zeros(variable.shape))
  model.encode(images, training=True)  # Moves them by 1 - momentum of the way.
  return tf.shape(images)[0], [
      tf.convert_to_tensor(variable) / (1.0 - layer.momentum)
      for layer in moving_layers(model)
      for variable in (layer.moving_mean, layer.moving_variance)]
