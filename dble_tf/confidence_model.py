"""g_phi (Eq. 8): from a representation to its sigma, learned from errors."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from dble_tf import replicas
from dble_tf.errors import UserError

LEARNS_FROM = ('errors', 'all')
# Sigma stays below this many times the scale of the space whatever the weights and
# inputs, and weights stay within MAX_WEIGHT whatever the update: neither overflows.
MAX_SIGMA = 10.0
MAX_WEIGHT = 1e3

_MAX_OUTPUT = 1e6
_SCALE_MOMENTUM = 0.9


@keras.saving.register_keras_serializable(package='dble_tf')
class Bounded(keras.constraints.Constraint):
  """Clips weights after each update; NaN becomes zero."""

  def __call__(self, w):
    return keras.ops.clip(
        keras.ops.where(keras.ops.isnan(w), 0.0, w), -MAX_WEIGHT, MAX_WEIGHT)


def bounded_softplus(v: tf.Tensor) -> tf.Tensor:
  """The softplus of v, bent so that it stays below `MAX_SIGMA`."""
  sigma = tf.nn.softplus(tf.minimum(v, _MAX_OUTPUT))
  return sigma / (1.0 + sigma / MAX_SIGMA)


# Where `bounded_softplus` is 1.
_UNIT_OUTPUT = math.log(math.expm1(1.0 / (1.0 - 1.0 / MAX_SIGMA)))


@keras.saving.register_keras_serializable(package='dble_tf')
class ConfidenceModel(keras.layers.Layer):
  """g_phi (Eq. 8): a two-layer MLP from h [..., D] to sigma [..., D], in float32.

  It owns what it learns from, its loss and its sigma. Sigma is in units of the space's
  own scale, the mean distance of representations to the center of their class over
  sqrt(D), and starts there: the second layer's kernel starts near zero and its bias
  where sigma is `scale`. The noise of an image is then as long as its distance to its
  center, whatever the encoder and the data. h is layer-normalized first.

  Attributes:
    scale: a scalar, the scale of the space; a moving average that `update_scale` moves,
      1 until then.
  """

  def __init__(
      self,
      dim: int,
      *,
      learns_from: str = 'errors',
      hidden_units: int = 512,
      dropout: float = 0.5,
      weight_decay: float = 5e-4,
      name: str | None = None,
      **kwargs,
  ):
    """Builds g_phi.

    Args:
      dim: D.
      learns_from: 'errors' of theta (Algorithm 1), or 'all' samples (Table 2).
      hidden_units: units of the first layer.
      dropout: rate between the two layers.
      weight_decay: factor of each kernel in its own gradient.
      name: of the layer.
      **kwargs: `keras.layers.Layer`'s.
    """
    super().__init__(name=name, **{**kwargs, 'dtype': 'float32'})
    if learns_from not in LEARNS_FROM:
      raise UserError(
          f'learns_from is {" or ".join(map(repr, LEARNS_FROM))}, not {learns_from!r}.')
    self._arguments = {
        'dim': dim, 'learns_from': learns_from, 'hidden_units': hidden_units,
        'dropout': dropout, 'weight_decay': weight_decay}
    self.dim = dim
    self.learns_from = learns_from
    shared = {
        'kernel_regularizer': keras.regularizers.L2(weight_decay / 2),
        'kernel_constraint': Bounded(), 'bias_constraint': Bounded(),
        'dtype': 'float32'}
    self.normalization = keras.layers.LayerNormalization(
        center=False, scale=False, dtype='float32')
    self.hidden = keras.layers.Dense(hidden_units, activation='relu', **shared)
    self.dropout = keras.layers.Dropout(dropout, dtype='float32')
    self.output_layer = keras.layers.Dense(
        dim, kernel_initializer=keras.initializers.RandomNormal(stddev=1e-3),
        bias_initializer=keras.initializers.Constant(_UNIT_OUTPUT), **shared)
    self.scale = self.add_weight(
        name='scale', shape=[], initializer='ones', trainable=False,
        aggregation='mean')
    self.build([None, dim])

  def build(self, input_shape):
    for layer in (self.normalization, self.hidden, self.dropout):
      layer.build(input_shape)
    self.output_layer.build([None, self.hidden.units])
    self.built = True

  def call(self, h: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Eq. 8: h [..., D] -> sigma [..., D] float32."""
    x = self.normalization(tf.reshape(tf.cast(h, tf.float32), [-1, self.dim]))
    x = self.output_layer(self.dropout(self.hidden(x), training=training))
    sigma = tf.convert_to_tensor(self.scale) * bounded_softplus(x)
    return tf.reshape(sigma, tf.shape(h))

  def update_scale(self, own_distances: tf.Tensor) -> None:
    """Moves `scale` towards that of a step's queries, on all replicas alike.

    Args:
      own_distances: [...], of queries to the centers of their own classes.
    """
    current, = replicas.mean([tf.reduce_mean(own_distances) / math.sqrt(self.dim)])
    before = tf.convert_to_tensor(self.scale)
    moved = _SCALE_MOMENTUM * before + (1.0 - _SCALE_MOMENTUM) * current
    self.scale.assign(tf.where(tf.math.is_finite(moved), moved, before))

  def loss(self, log_likelihood: tf.Tensor, is_error: tf.Tensor) -> tf.Tensor:
    """Phi's loss (Algorithm 1): -log of Eq. 9 at the true class, over the errors.

    The mean over the errors of all replicas, so that phi learns at the same pace
    however rare they are. Without any error the loss and its gradient are zero. Errors
    are masked, not gathered: shapes stay static.

    Args:
      log_likelihood: [...] log p(y_s | x_s; phi) at the true class of each query.
      is_error: [...] booleans, true where the encoder was wrong.

    Returns:
      A scalar.
    """
    if self.learns_from == 'all':
      is_error = tf.ones_like(is_error)
    mask = tf.cast(is_error, log_likelihood.dtype)
    num_errors, = replicas.total([tf.reduce_sum(mask)])
    # The mean over the replicas of what each returns is the loss.
    return -replicas.count() * tf.reduce_sum(mask * log_likelihood) / tf.maximum(
        num_errors, 1.0)

  def get_config(self):
    return {**super().get_config(), **self._arguments}


def phi_optimizer(
    identifier: keras.optimizers.Optimizer | str,
    theta_optimizer: keras.optimizers.Optimizer,
    phi: Sequence[keras.Variable],
) -> keras.optimizers.Optimizer:
  """Phi's optimizer, built; scales losses where theta's does."""
  optimizer = keras.optimizers.get(identifier)
  if optimizer is theta_optimizer:
    raise UserError('Theta and phi need an optimizer each; this is one for both.')
  loss_scaling = keras.optimizers.LossScaleOptimizer
  if (isinstance(theta_optimizer, loss_scaling)
      and not isinstance(optimizer, loss_scaling)):
    optimizer = loss_scaling(optimizer)  # As Keras does for theta under mixed_float16.
  optimizer.build(phi)
  return optimizer
