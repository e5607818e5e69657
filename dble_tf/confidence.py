"""Confidence by learning from errors (Section 4): g_phi, its loss, Eq. 10.

Shapes: B is a batch, D the representation's size, M the number of classes, U
the number of representations sampled per image.
"""

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from dble_tf import prototypes

tfd = tfp.distributions


def confidence_mlp(
    dim: int,
    hidden_units: int = 512,
    dropout: float = 0.5,
    weight_decay: float = 5e-4,
    initial_sigma: float = 0.05,
) -> keras.Model:
  """g_phi (Eq. 8): a two-layer MLP from h [B, D] to sigma [B, D] > 0.

  Sigma is the softplus of the second layer, whose kernel starts near zero and
  whose bias starts where softplus gives `initial_sigma`: small everywhere, as in
  Figure 3a.

  Args:
    dim: D.
    hidden_units: units of the first layer.
    dropout: rate between the two layers.
    weight_decay: factor of each kernel in its own gradient.
    initial_sigma: sigma before training, for every image and dimension.
  """
  regularizer = keras.regularizers.L2(weight_decay / 2)
  return keras.Sequential(
      [
          keras.Input([dim]),
          keras.layers.Dense(
              hidden_units, activation='relu', kernel_regularizer=regularizer),
          keras.layers.Dropout(dropout),
          keras.layers.Dense(
              dim,
              activation='softplus',
              kernel_initializer=keras.initializers.RandomNormal(stddev=1e-3),
              bias_initializer=keras.initializers.Constant(
                  float(tfp.math.softplus_inverse(initial_sigma))),
              kernel_regularizer=regularizer,
              dtype='float32'),
      ],
      name='confidence_model')


def sample_representations(
    h: tf.Tensor, sigma: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
  """Draws z ~ N(h, diag(sigma^2)), differentiable with respect to sigma.

  Args:
    h: [..., D].
    sigma: [..., D].
    seed: [2] integers; the same seed draws the same z.

  Returns:
    z, [..., D] float32.
  """
  return tfd.MultivariateNormalDiag(
      tf.cast(h, tf.float32), tf.cast(sigma, tf.float32)).sample(seed=seed)


def error_loss(log_likelihood: tf.Tensor, is_error: tf.Tensor) -> tf.Tensor:
  """Phi's loss: -log of Eq. 9 at the true class, averaged over the errors.

  The errors are masked, not gathered, so that shapes stay static; without any
  error the loss and its gradient are zero.

  Args:
    log_likelihood: [...] log p(y_s | x_s; phi) at the true class.
    is_error: [...] booleans, true where the encoder was wrong.

  Returns:
    A scalar.
  """
  weights = tf.cast(is_error, log_likelihood.dtype)
  return tf.math.divide_no_nan(
      -tf.reduce_sum(weights * log_likelihood), tf.reduce_sum(weights))


def standard_noise(num_samples: int, dim: int, seed: int) -> tf.Tensor:
  """The U standard normal vectors that all images share at inference, [U, D]."""
  return tfd.MultivariateNormalDiag(
      tf.zeros([dim]), tf.ones([dim])).sample(num_samples, seed=[seed, 0])


def averaged_probabilities(
    h: tf.Tensor, sigma: tf.Tensor, centers: tf.Tensor, noise: tf.Tensor
) -> tf.Tensor:
  """Eq. 10 for every class: the softmax averaged over z^u = h + sigma * noise^u.

  Args:
    h: [B, D].
    sigma: [B, D].
    centers: [M, D].
    noise: [U, D] standard normal vectors, the same for every row of h.

  Returns:
    [B, M] probabilities.
  """
  h = tf.cast(h, tf.float32)
  z = h + tf.cast(sigma, tf.float32) * tf.cast(noise, tf.float32)[:, tf.newaxis]
  log_likelihoods = prototypes.log_likelihoods(prototypes.distances(z, centers))
  return tf.reduce_mean(tf.exp(log_likelihoods), axis=0)
