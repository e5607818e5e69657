"""Learning from errors without distances: the second row of the paper's Table 2."""

import keras
import tensorflow as tf

from dble_tf import confidence
from dble_tf import replicas
from dble_tf.baselines.vanilla import softmax_answers
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import regularization
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.confidence_model import phi_optimizer
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class VanillaErrors(Vanilla):
  """Plain training of theta, and a confidence model on its logits: z are logits.

  `fit` takes batches of (images, class ids).

  Attributes:
    confidence_model: g_phi, from logits [B, M] to sigma [B, M].
    noise: [U, M], the standard normal vectors behind the samples.
  """

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      confidence_model: ConfidenceModel,
      num_samples: int = 20,
      seed: int = 0,
      weight_decay: float = 5e-4,
      name: str | None = None,
      **kwargs,
  ):
    """Builds the model around an encoder and a confidence model.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      confidence_model: g_phi, for vectors of M numbers.
      num_samples: U, the number of logits sampled per image.
      seed: of the noise, in training and at inference.
      weight_decay: factor of the linear layer's kernel in its own gradient.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    super().__init__(
        encoder, num_classes, weight_decay=weight_decay, name=name, **kwargs)
    if confidence_model.dim != num_classes:
      raise UserError(
          f'confidence_model must be a ConfidenceModel({num_classes}): it takes '
          'logits.')
    self.confidence_model = confidence_model
    self.num_samples = num_samples
    self.seed = seed
    self.noise = self.add_state(
        'noise', [num_samples, num_classes],
        lambda shape, dtype: confidence.standard_noise(shape, [seed, 0]))
    self.confidence_loss = keras.metrics.Mean('confidence_loss')

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Labels representations [B, D].

    Returns:
      label: [B] int32, the largest logit.
      confidence: [B], the averaged softmax at that label.
      probabilities: [B, M], the softmax averaged over logits z^u = logits + sigma e^u.
      sigma: [B, M].
      logits: [B, M].
    """
    answers = softmax_answers(self.logits(h))
    sigma = self.confidence_model(answers['logits'], training=False)
    z = confidence.sample_representations(
        answers['logits'][:, tf.newaxis], sigma[:, tf.newaxis],
        tf.convert_to_tensor(self.noise))  # [B, U, M]
    probabilities = tf.reduce_mean(tf.nn.softmax(z), axis=1)
    return {
        **answers,
        'confidence': tf.gather(
            probabilities, answers['label'], axis=1, batch_dims=1),
        'probabilities': probabilities,
        'sigma': sigma,
    }

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Adds mean sigma [B]."""
    return {**super().served(outputs),
            'sigma': tf.reduce_mean(outputs['sigma'], axis=-1)}

  @property
  def phi(self) -> list[keras.Variable]:
    """The variables that `confidence_optimizer` moves."""
    return self.confidence_model.trainable_variables

  def compile(self, optimizer='sgd', confidence_optimizer='sgd', **kwargs):
    """Sets the optimizers of theta and phi; the rest as in `Vanilla.compile`."""
    super().compile(optimizer, **kwargs)
    self.confidence_optimizer = phi_optimizer(
        confidence_optimizer, self.optimizer, self.phi)

  def get_compile_config(self):
    config = super().get_compile_config()
    if config:
      config['confidence_optimizer'] = keras.saving.serialize_keras_object(
          self.confidence_optimizer)
    return config

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta by the cross-entropy and of phi by theta's errors."""
    images, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    targets = self.targets(y)
    class_ids = tf.argmax(targets, axis=-1, output_type=tf.int32)

    with tf.GradientTape() as tape:
      logits = self.logits(self.encode(images, training=True))
      loss = self.theta_loss(images, targets, logits, sample_weight)
    replicas.minimize(self.optimizer, tape, loss, self.theta)

    is_error = tf.argmax(logits, axis=-1, output_type=tf.int32) != class_ids
    noise = confidence.training_noise(
        tf.shape(logits), self.seed, self.confidence_optimizer)
    with tf.GradientTape() as tape:
      sigma = self.confidence_model(logits, training=True)
      z = confidence.sample_representations(logits, sigma, noise)
      confidence_loss = self.confidence_model.loss(
          -tf.nn.sparse_softmax_cross_entropy_with_logits(class_ids, z), is_error)
      phi_loss = confidence_loss + regularization(self.confidence_model)
    replicas.minimize(
        self.confidence_optimizer, tape, phi_loss, self.phi, skip_non_finite=True)

    self.confidence_loss.update_state(confidence_loss)
    return {
        # Phi's weight decay is part of Keras' compiled loss already.
        **self.training_results(loss + confidence_loss, targets, logits, sample_weight),
        **replicas.metric_results(self.confidence_loss),
    }

  def get_config(self):
    return {
        **super().get_config(),
        'confidence_model': keras.saving.serialize_keras_object(self.confidence_model),
        'num_samples': self.num_samples,
        'seed': self.seed,
    }
