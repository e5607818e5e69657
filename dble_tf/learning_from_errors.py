"""Learning from errors (Section 3.2): a confidence model trained beside the encoder."""

from collections.abc import Callable

import keras
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf.errors import UserError

CONFIDENCE_TRAINING = ('errors', 'all')


class LearningFromErrors(classifier.Classifier):
  """The part of a classifier that learns sigma from what theta gets wrong.

  To be inherited together with a classifier that trains theta: `DBLE` has it with
  distances to class centers, `VanillaErrors` with logits.

  Attributes:
    confidence_model: g_phi, from points that the encoder gives to sigma > 0.
    noise: [U, D], the standard normal vectors behind Eq. 10's samples. Every image
      shares them, so its confidence depends neither on its batch nor on the call.
  """

  def __init__(
      self,
      encoder: keras.Model,
      confidence_model: keras.Model,
      num_classes: int,
      *,
      num_samples: int = 20,
      seed: int = 0,
      confidence_training: str = 'errors',
      **kwargs,
  ):
    """Builds the model around an encoder and a confidence model.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      confidence_model: g_phi, built likewise.
      num_classes: M.
      num_samples: U, how many points are sampled per image (Eq. 10).
      seed: of the noise, in training and at inference.
      confidence_training: what phi learns from: 'errors' of theta, or 'all' samples.
      **kwargs: for the classifier that trains theta.
    """
    super().__init__(encoder, num_classes, **kwargs)
    self.confidence_model = confidence_model
    self.num_samples = num_samples
    self.seed = seed
    self.confidence_training = confidence_training
    if confidence_training not in CONFIDENCE_TRAINING:
      raise UserError(
          f"confidence_training is 'errors' or 'all', not {confidence_training!r}.")
    dim = self.sigma_size
    size = classifier.vector_size('confidence model', confidence_model)
    if size != dim or confidence_model.inputs[0].shape[-1] != dim:
      raise UserError(
          f'The confidence model must take and give {dim} numbers an image: build it '
          f'with confidence_mlp({dim}).')
    self.noise = self.add_state(
        'noise', [num_samples, dim],
        lambda shape, dtype: confidence.standard_noise(shape, [seed, 0]))
    self.confidence_loss = keras.metrics.Mean('confidence_loss')

  @property
  def sigma_size(self) -> int:
    """D: of how many numbers each has its sigma."""
    return self.representation_size

  def with_sigma(
      self,
      answers: dict[str, tf.Tensor],
      probabilities: tf.Tensor,
      sigma: tf.Tensor,
  ) -> dict[str, tf.Tensor]:
    """The same labels with the averaged probabilities [B, M] of Eq. 10."""
    return {
        **answers,
        'confidence': tf.gather(
            probabilities, answers['label'], axis=1, batch_dims=1),
        'probabilities': probabilities,
        'sigma': sigma,
    }

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What an export answers: also mean sigma [B]."""
    return {**super().served(outputs),
            'sigma': tf.reduce_mean(outputs['sigma'], axis=-1)}

  def compile(self, optimizer='sgd', confidence_optimizer='sgd', **kwargs):
    """Sets the optimizers of theta and phi; the rest as without phi."""
    super().compile(optimizer, **kwargs)
    self.confidence_optimizer = keras.optimizers.get(confidence_optimizer)
    if self.confidence_optimizer is self.optimizer:
      raise UserError('Theta and phi need an optimizer each; this is one for both.')
    loss_scaling = keras.optimizers.LossScaleOptimizer
    if (isinstance(self.optimizer, loss_scaling)
        and not isinstance(self.confidence_optimizer, loss_scaling)):
      # Keras scales losses under mixed_float16; for phi as for theta.
      self.confidence_optimizer = loss_scaling(self.confidence_optimizer)
    self.confidence_optimizer.build(self.confidence_model.trainable_variables)

  def get_compile_config(self):
    config = super().get_compile_config()
    if config:
      config['confidence_optimizer'] = keras.saving.serialize_keras_object(
          self.confidence_optimizer)
    return config

  def learn_confidence(
      self,
      h: tf.Tensor,
      is_error: tf.Tensor,
      log_likelihoods: Callable[[tf.Tensor], tf.Tensor],
  ) -> tf.Tensor:
    """The second half of Algorithm 1: the confidence loss (Eq. 8 and 9) on phi.

    Phi never moves theta: its tape begins behind the encoder.

    Args:
      h: [..., D], the points around which z is sampled.
      is_error: [...], where theta got the label wrong.
      log_likelihoods: z [..., D] -> [...] log-likelihoods of the true class.

    Returns:
      The loss of before the update.
    """
    if self.confidence_training == 'all':
      is_error = tf.ones_like(is_error)
    with tf.GradientTape() as tape:
      z = confidence.sample_representations(
          h, self._training_sigma(h), self._training_noise(tf.shape(h)))
      confidence_loss = confidence.error_loss(log_likelihoods(z), is_error)
      loss = confidence_loss + classifier.regularization(self.confidence_model)
      scaled_loss = self.confidence_optimizer.scale_loss(loss)
    phi = self.confidence_model.trainable_variables
    self.confidence_optimizer.apply(tape.gradient(scaled_loss, phi), phi)
    self.confidence_loss.update_state(confidence_loss)
    return loss

  def _training_sigma(self, h):
    """Eq. 8 in training mode, [..., D] -> [..., D]."""
    rows = tf.reshape(h, [-1, h.shape[-1]])
    return tf.reshape(self.confidence_model(rows, training=True), tf.shape(h))

  def _training_noise(self, shape):
    """Noise of its own for each step, the same when a run is repeated."""
    # Inference has the seed (seed, 0), so the first step has (seed, 1).
    step = tf.cast(self.confidence_optimizer.iterations.value, tf.int32) + 1
    return confidence.standard_noise(shape, tf.stack([self.seed, step]))

  def get_config(self):
    return {
        **super().get_config(),
        'confidence_model': keras.saving.serialize_keras_object(
            self.confidence_model),
        'num_samples': self.num_samples,
        'seed': self.seed,
        'confidence_training': self.confidence_training,
    }
