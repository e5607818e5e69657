"""Learning from errors without distances: the second row of the paper's Table 2."""

import keras
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf import replicas
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.learning_from_errors import LearningFromErrors


@keras.saving.register_keras_serializable(package='dble_tf')
class VanillaErrors(LearningFromErrors, Vanilla):
  """Plain training of theta, and a confidence model on its logits: z are logits.

  `fit` takes batches of (images, class ids).
  """

  @property
  def sigma_size(self) -> int:
    """M: each logit has its sigma."""
    return self.num_classes

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images and says how sure it is.

    Returns:
      label: [B] int32, the largest logit.
      confidence: [B], the averaged softmax at that label.
      probabilities: [B, M], the softmax averaged over logits z^u = logits + sigma e^u.
      sigma: [B, M].
      logits: [B, M].
    """
    logits = self.linear(self.encode(images, training))
    sigma = self.confidence_model(logits, training=False)
    z = confidence.sample_representations(
        logits[:, tf.newaxis], sigma[:, tf.newaxis],
        tf.convert_to_tensor(self.noise))  # [B, U, M]
    probabilities = tf.reduce_mean(tf.nn.softmax(z), axis=1)
    return self.with_sigma(self.answers(logits), probabilities, sigma)

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta by the cross-entropy and of phi by theta's errors."""
    images, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    targets = self.targets(y)
    class_ids = tf.argmax(targets, axis=-1, output_type=tf.int32)
    with tf.GradientTape() as tape:
      logits = self.linear(self.encode(images, training=True))
      answers = self.answers(logits)
      # Keras' losses are a replica's share already.
      theta_loss = self.compute_loss(images, targets, answers, sample_weight)
      scaled_loss = self.optimizer.scale_loss(theta_loss)
    self.move_theta(tape, scaled_loss)
    phi_loss = self.learn_confidence(
        logits, answers['label'] != class_ids,
        lambda z: -tf.nn.sparse_softmax_cross_entropy_with_logits(class_ids, z))
    # Keras counts phi's weight decay in the first loss too.
    self._loss_tracker.update_state(
        theta_loss * replicas.count() + phi_loss
        - sum(classifier.regularization(one) for one in self.candidates))
    return {
        **self.compute_metrics(images, targets, answers, sample_weight),
        **classifier.metric_results(self.confidence_loss),
    }
