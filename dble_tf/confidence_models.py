"""g_phi (Eq. 8): from representations h [B, D] to sigma [B, D], in float32.

Whatever its weights and input, sigma stays between 0 and `MAX_SIGMA`, and whatever an
update would do, weights stay between -`MAX_WEIGHT` and `MAX_WEIGHT`: neither overflows.
"""

import math

import keras
import tensorflow as tf

from dble_tf.errors import UserError

PARAMETRISATIONS = ('softplus', 'log_variance')
MAX_SIGMA = 10.0
MAX_WEIGHT = 1e3
_MAX_OUTPUT = 1e6


@keras.saving.register_keras_serializable(package='dble_tf')
class Bounded(keras.constraints.Constraint):
  """Clips weights after each update; what is no number becomes zero."""

  def __call__(self, w):
    return keras.ops.clip(
        keras.ops.where(keras.ops.isnan(w), 0.0, w), -MAX_WEIGHT, MAX_WEIGHT)


@keras.saving.register_keras_serializable(package='dble_tf')
def softplus(v: tf.Tensor) -> tf.Tensor:
  """Sigma as the softplus of v, bent so that it does not pass `MAX_SIGMA`."""
  sigma = tf.nn.softplus(tf.minimum(v, _MAX_OUTPUT))
  return sigma / (1.0 + sigma / MAX_SIGMA)


@keras.saving.register_keras_serializable(package='dble_tf')
def log_variance(v: tf.Tensor) -> tf.Tensor:
  """Sigma = exp(v / 2), as in the paper's code, bent in the same way."""
  return MAX_SIGMA * tf.sigmoid(v / 2.0 - math.log(MAX_SIGMA))


def confidence_mlp(
    dim: int,
    hidden_units: int = 512,
    dropout: float = 0.5,
    weight_decay: float = 5e-4,
    initial_sigma: float = 0.05,
    parametrisation: str = 'softplus',
    per_dimension: bool = True,
    normalize_input: bool = True,
) -> keras.Model:
  """A two-layer MLP from h [B, D] to sigma [B, D].

  The second layer's kernel starts near zero and its bias where sigma is
  `initial_sigma`: small everywhere, as in Figure 3a.

  Args:
    dim: D.
    hidden_units: units of the first layer.
    dropout: rate between the two layers.
    weight_decay: factor of each kernel in its own gradient.
    initial_sigma: sigma before training, for every image and dimension.
    parametrisation: what the second layer gives: 'softplus' of it is sigma, or it is
      the 'log_variance'.
    per_dimension: whether each dimension has its own sigma, or all have the same.
    normalize_input: whether h is shifted and scaled to mean 0 and variance 1, so that
      its length tells nothing.
  """
  if not 0 < initial_sigma < MAX_SIGMA:
    raise UserError(
        f'initial_sigma must be between 0 and {MAX_SIGMA:g}, not {initial_sigma}.')
  if parametrisation not in PARAMETRISATIONS:
    raise UserError(
        f"Sigma's parametrisation is {' or '.join(PARAMETRISATIONS)}, not "
        f'{parametrisation!r}.')
  shared = {
      'kernel_regularizer': keras.regularizers.L2(weight_decay / 2),
      'kernel_constraint': Bounded(), 'bias_constraint': Bounded(),
      'dtype': 'float32'}
  layers = [
      keras.layers.Dense(hidden_units, activation='relu', **shared),
      keras.layers.Dropout(dropout, dtype='float32'),
      keras.layers.Dense(
          dim if per_dimension else 1,
          activation=softplus if parametrisation == 'softplus' else log_variance,
          kernel_initializer=keras.initializers.RandomNormal(stddev=1e-3),
          bias_initializer=keras.initializers.Constant(
              _initial_output(initial_sigma, parametrisation)),
          **shared),
  ]
  if normalize_input:
    layers.insert(0, keras.layers.LayerNormalization(
        center=False, scale=False, dtype='float32'))
  if not per_dimension:
    layers += [keras.layers.RepeatVector(dim, dtype='float32'),
               keras.layers.Flatten(dtype='float32')]
  return keras.Sequential([keras.Input([dim]), *layers], name='confidence_model')


def constant_sigma(dim: int, sigma: float = 0.05) -> keras.Model:
  """The same sigma for every image and dimension, with nothing to learn."""
  return keras.Sequential(
      [keras.Input([dim]),
       keras.layers.Rescaling(0.0, offset=sigma, dtype='float32')],
      name='constant_sigma')


def _initial_output(sigma, parametrisation):
  """What the second layer must give for sigma."""
  unbent = sigma / (1.0 - sigma / MAX_SIGMA)
  return (math.log(math.expm1(unbent)) if parametrisation == 'softplus'
          else 2.0 * math.log(unbent))
