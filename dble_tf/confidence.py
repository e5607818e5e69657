"""Confidence by learning from errors (Section 4): g_phi, samples, phi's loss, Eq. 10.

Shapes: B is a batch, D the representation's size, M the number of classes, U the number
of representations sampled per image.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from dble_tf import prototypes
from dble_tf import replicas
from dble_tf.errors import UserError

LEARNS_FROM = ('errors', 'all')
# Sigma stays below this whatever the weights and inputs, and weights stay within
# MAX_WEIGHT whatever the update: neither overflows.
MAX_SIGMA = 10.0
MAX_WEIGHT = 1e3

_MAX_OUTPUT = 1e6
# The number of distances of an image, samples times classes, computed at a time.
_CHUNK_DISTANCES = 4096


@keras.saving.register_keras_serializable(package='dble_tf')
class Bounded(keras.constraints.Constraint):
  """Clips weights after each update; NaN becomes zero."""

  def __call__(self, w):
    return keras.ops.clip(
        keras.ops.where(keras.ops.isnan(w), 0.0, w), -MAX_WEIGHT, MAX_WEIGHT)


def softplus(v: tf.Tensor) -> tf.Tensor:
  """Sigma as the softplus of v, bent so that it stays below `MAX_SIGMA`."""
  sigma = tf.nn.softplus(tf.minimum(v, _MAX_OUTPUT))
  return sigma / (1.0 + sigma / MAX_SIGMA)


def log_variance(v: tf.Tensor) -> tf.Tensor:
  """Sigma = exp(v / 2), as in the paper's released code, bent in the same way."""
  return MAX_SIGMA * tf.sigmoid(v / 2.0 - math.log(MAX_SIGMA))


# Name -> sigma from the second layer's output, and the inverse of its unbent form.
PARAMETRIZATIONS = {
    'softplus': (softplus, lambda sigma: math.log(math.expm1(sigma))),
    'log_variance': (log_variance, lambda sigma: 2.0 * math.log(sigma)),
}


@keras.saving.register_keras_serializable(package='dble_tf')
class ConfidenceModel(keras.layers.Layer):
  """g_phi (Eq. 8): a two-layer MLP from h [..., D] to sigma [..., D], in float32.

  It owns what it learns from, its loss and its sigma. The second layer's kernel starts
  near zero and its bias where sigma is `initial_sigma`: small everywhere, as in
  Figure 3a.
  """

  def __init__(
      self,
      dim: int,
      *,
      learns_from: str = 'errors',
      hidden_units: int = 512,
      dropout: float = 0.5,
      weight_decay: float = 5e-4,
      initial_sigma: float = 0.05,
      parametrization: str = 'softplus',
      normalize_input: bool = True,
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
      initial_sigma: sigma before training, for every image and dimension.
      parametrization: sigma is the 'softplus' of the second layer's output, or that is
        its 'log_variance'.
      normalize_input: shift and scale h to mean 0 and variance 1 first, so that g_phi
        does not see its length.
      name: of the layer.
      **kwargs: `keras.layers.Layer`'s.
    """
    super().__init__(name=name, **{**kwargs, 'dtype': 'float32'})
    if learns_from not in LEARNS_FROM:
      raise UserError(
          f'learns_from is {" or ".join(map(repr, LEARNS_FROM))}, not {learns_from!r}.')
    if parametrization not in PARAMETRIZATIONS:
      raise UserError(
          f'parametrization is {" or ".join(map(repr, PARAMETRIZATIONS))}, not '
          f'{parametrization!r}.')
    if not 0 < initial_sigma < MAX_SIGMA:
      raise UserError(
          f'initial_sigma must be between 0 and {MAX_SIGMA:g}, not {initial_sigma}.')
    self._arguments = {
        'dim': dim, 'learns_from': learns_from, 'hidden_units': hidden_units,
        'dropout': dropout, 'weight_decay': weight_decay,
        'initial_sigma': initial_sigma, 'parametrization': parametrization,
        'normalize_input': normalize_input}
    self.dim = dim
    self.learns_from = learns_from
    self._to_sigma, inverse = PARAMETRIZATIONS[parametrization]
    initial_output = inverse(initial_sigma / (1.0 - initial_sigma / MAX_SIGMA))
    shared = {
        'kernel_regularizer': keras.regularizers.L2(weight_decay / 2),
        'kernel_constraint': Bounded(), 'bias_constraint': Bounded(),
        'dtype': 'float32'}
    self.hidden = keras.layers.Dense(hidden_units, activation='relu', **shared)
    self.dropout = keras.layers.Dropout(dropout, dtype='float32')
    self.output_layer = keras.layers.Dense(
        dim, kernel_initializer=keras.initializers.RandomNormal(stddev=1e-3),
        bias_initializer=keras.initializers.Constant(initial_output), **shared)
    self.normalization = keras.layers.LayerNormalization(
        center=False, scale=False, dtype='float32') if normalize_input else None
    self.build([None, dim])

  def build(self, input_shape):
    for layer in (self.normalization, self.hidden, self.dropout):
      if layer is not None:
        layer.build(input_shape)
    self.output_layer.build([None, self.hidden.units])
    self.built = True

  def call(self, h: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Eq. 8: h [..., D] -> sigma [..., D] float32."""
    x = tf.reshape(tf.cast(h, tf.float32), [-1, self.dim])
    if self.normalization is not None:
      x = self.normalization(x)
    x = self.output_layer(self.dropout(self.hidden(x), training=training))
    return tf.reshape(self._to_sigma(x), tf.shape(h))

  def loss(self, log_likelihood: tf.Tensor, is_error: tf.Tensor) -> tf.Tensor:
    """Phi's loss (Algorithm 1): -log of Eq. 9 at the true class, over the errors.

    The sum over the errors is divided by the number of all queries. Without any error
    the loss and its gradient are zero. Errors are masked, not gathered: shapes stay
    static.

    Args:
      log_likelihood: [...] log p(y_s | x_s; phi) at the true class of each query.
      is_error: [...] booleans, true where the encoder was wrong.

    Returns:
      A scalar.
    """
    if self.learns_from == 'all':
      is_error = tf.ones_like(is_error)
    return -tf.reduce_mean(tf.cast(is_error, log_likelihood.dtype) * log_likelihood)

  def get_config(self):
    return {**super().get_config(), **self._arguments}


def standard_noise(
    shape: Sequence[int],
    seed: Sequence[int],
    part: tf.Tensor | int = 0,
    num_parts: int = 1,
) -> tf.Tensor:
  """Standard normal numbers of a [2] seed, the same with XLA and without.

  TensorFlow's generators give the same random bits both ways but turn them into floats
  differently; here the bits become quantiles of the normal distribution.

  Args:
    shape: of the result.
    seed: [2] integers.
    part: which of `num_parts` equal parts, along the first axis, of that seed's noise
      is returned.
    num_parts: the number of parts.
  """
  import tensorflow_probability as tfp

  whole = shape
  if num_parts > 1:
    rows, *others = tf.unstack(shape)
    whole = [num_parts * rows, *others]
  bits = tf.random.stateless_uniform(
      whole, seed, minval=None, maxval=None, dtype=tf.uint32, alg='philox')
  if num_parts > 1:
    # A slice of known size: a TPU learns its start only at run time.
    bits = tf.slice(bits, [part * rows, *[0] * len(others)], shape)
  # The upper 23 bits, as the middle of one of 2^23 equal parts of (0, 1).
  uniform = (tf.cast(tf.bitwise.right_shift(bits, 9), tf.float32) + 0.5) / 2**23
  return tfp.distributions.Normal(0.0, 1.0).quantile(uniform)


def training_noise(
    shape: tf.Tensor, seed: int, optimizer: keras.optimizers.Optimizer
) -> tf.Tensor:
  """Noise for the z of one training step, different for each step and query.

  Repeating a run repeats it, also on another number of replicas.

  Args:
    shape: of the result.
    seed: of the run.
    optimizer: phi's, which counts the steps.
  """
  # Inference has the seed (seed, 0), so the first step has (seed, 1).
  step = tf.cast(optimizer.iterations.value, tf.int32) + 1
  return standard_noise(
      shape, tf.stack([seed, step]), replicas.index(), replicas.count())


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


def sample_representations(
    h: tf.Tensor, sigma: tf.Tensor, noise: tf.Tensor
) -> tf.Tensor:
  """Draws z ~ N(h, diag(sigma^2)) as h + sigma * noise (Algorithm 1).

  Args:
    h: [..., D].
    sigma: [..., D].
    noise: [..., D] standard normal numbers; leading dimensions broadcast.

  Returns:
    z, [..., D] float32, differentiable with respect to sigma.
  """
  import tensorflow_probability as tfp

  distribution = tfp.distributions.MultivariateNormalDiag(
      tf.cast(h, tf.float32), tf.cast(sigma, tf.float32))
  return distribution.bijector.forward(noise)


def averaged_probabilities(
    h: tf.Tensor,
    sigma: tf.Tensor,
    centers: tf.Tensor,
    noise: tf.Tensor,
    temperature: tf.Tensor | float = 1.0,
) -> tf.Tensor:
  """Eq. 10 for every class: the softmax averaged over z^u = h + sigma * noise^u.

  Args:
    h: [B, D].
    sigma: [B, D].
    centers: [M, D].
    noise: [U, D] standard normal vectors, the same for every row of h.
    temperature: distances are divided by it; the paper has none.

  Returns:
    [B, M] probabilities.
  """
  num_samples, dim = noise.shape
  num_classes = centers.shape[0]
  chunk = max(1, min(num_samples, _CHUNK_DISTANCES // num_classes))
  num_chunks, rest = divmod(num_samples, chunk)

  def add_chunk(total, noise_chunk):
    log_likelihoods = prototypes.log_likelihoods(
        sampled_distances(h, sigma, centers, noise_chunk) / temperature)
    return total + tf.reduce_sum(tf.exp(log_likelihoods), axis=1)

  if chunk == num_samples:  # A loop would dominate small batches.
    return add_chunk(0.0, noise) / num_samples
  total = tf.foldl(
      add_chunk,
      tf.reshape(noise[:num_chunks * chunk], [num_chunks, chunk, dim]),
      initializer=tf.zeros([tf.shape(h)[0], num_classes]))
  if rest:
    total = add_chunk(total, noise[-rest:])
  return total / num_samples


def sampled_distances(
    h: tf.Tensor, sigma: tf.Tensor, centers: tf.Tensor, noise: tf.Tensor
) -> tf.Tensor:
  """Distances of z^u = h + sigma * noise^u to the centers, without making any z.

  Args:
    h: [B, D].
    sigma: [B, D].
    centers: [M, D].
    noise: [U, D].

  Returns:
    [B, U, M] float32.
  """
  return scaled_distances(distance_terms(h, sigma, centers, noise), 1.0)


class DistanceTerms(NamedTuple):
  """Squared distances of z^u to the centers, by powers of a factor on sigma.

  Attributes:
    constant: [B, 1, M].
    linear: [B, U, M].
    quadratic: [B, U, 1].
  """

  constant: tf.Tensor
  linear: tf.Tensor
  quadratic: tf.Tensor


def distance_terms(
    h: tf.Tensor, sigma: tf.Tensor, centers: tf.Tensor, noise: tf.Tensor
) -> DistanceTerms:
  """Takes `sampled_distances` apart.

  |h + sigma e - c|^2 = |h - c|^2 + 2 (e.(sigma h) - sigma.(e c)) + (sigma^2).(e^2):
  matrix products of [B, D] tensors, where all z would be [U, B, D].
  """
  h, sigma = tf.cast(h, tf.float32), tf.cast(sigma, tf.float32)
  num_samples, dim = noise.shape
  num_classes = centers.shape[0]
  moved_centers = tf.reshape(noise[:, tf.newaxis] * centers, [-1, dim])  # [U * M, D]
  along_centers = tf.reshape(
      tf.matmul(sigma, moved_centers, transpose_b=True),
      [-1, num_samples, num_classes])
  along_h = tf.matmul(sigma * h, noise, transpose_b=True)  # [B, U]
  noise_lengths = tf.matmul(
      tf.square(sigma), tf.square(noise), transpose_b=True)  # [B, U]
  return DistanceTerms(
      constant=prototypes.squared_distances(h, centers)[:, tf.newaxis],
      linear=2.0 * (along_h[..., tf.newaxis] - along_centers),
      quadratic=noise_lengths[..., tf.newaxis])


def scaled_distances(terms: DistanceTerms, sigma_scale: tf.Tensor | float) -> tf.Tensor:
  """Distances [B, U, M] with sigma multiplied by a factor."""
  return prototypes.root(
      terms.constant + sigma_scale * terms.linear
      + sigma_scale**2 * terms.quadratic)
