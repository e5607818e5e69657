"""Confidence by learning from errors (Section 4): samples around h, Eq. 10.

Shapes: B is a batch, D the representation's size, M the number of classes, U the number
of representations sampled per image.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from dble_tf import prototypes
from dble_tf import replicas

# The number of distances of an image, samples times classes, computed at a time.
_CHUNK_DISTANCES = 4096


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
