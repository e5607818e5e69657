"""Plain training: softmax cross-entropy on a linear layer."""

import keras
import tensorflow as tf

from dble_tf import replicas
from dble_tf.classifier import Classifier


@keras.saving.register_keras_serializable(package='dble_tf')
class Vanilla(Classifier):
  """An encoder and a linear layer; its confidence is the softmax at the label.

  `fit` takes batches of (images, class ids), such as `Dataset.training_batches` gives,
  or of images and target distributions [B, M].
  """

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      weight_decay: float = 5e-4,
      name: str | None = None,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      weight_decay: factor of the linear layer's kernel in its own gradient.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    super().__init__(encoder, num_classes, name=name, **kwargs)
    self.weight_decay = weight_decay
    self.linear = keras.layers.Dense(
        num_classes, dtype='float32',
        kernel_regularizer=keras.regularizers.L2(weight_decay / 2))
    self.linear.build([None, self.representation_size])

  def logits(self, h: tf.Tensor, training: bool = False) -> tf.Tensor:
    """The linear layer: representations [B, D] -> [B, M]."""
    return self.linear(h)

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Labels representations [B, D].

    Returns:
      label: [B] int32, the largest logit.
      confidence: [B], the softmax at that label.
      probabilities: [B, M].
      logits: [B, M].
    """
    return softmax_answers(self.logits(h))

  @property
  def theta(self) -> list[keras.Variable]:
    """The encoder and the linear layer."""
    return [*super().theta, *self.linear.trainable_variables]

  def take_trained(self, other: 'Vanilla') -> None:
    """Copies the trained weights of a model with the same encoder."""
    self.encoder.set_weights(other.encoder.get_weights())
    self.linear.set_weights(other.linear.get_weights())

  def targets(self, y: tf.Tensor) -> tf.Tensor:
    """Class ids [B] or [B, 1], or distributions [B, M] -> distributions [B, M]."""
    if len(y.shape) == 2 and y.shape[-1] != 1:
      return y
    return tf.one_hot(tf.reshape(tf.cast(y, tf.int32), [-1]), self.num_classes)

  def compile(self, optimizer='sgd', **kwargs):
    """Keras' `compile`; the loss is the cross-entropy unless one is given.

    A loss is given the targets as distributions [B, M] and the logits [B, M].
    Further `metrics` are for `evaluate`: each is given the class ids [B] and the
    probabilities [B, M].
    """
    kwargs.setdefault(
        'loss', keras.losses.CategoricalCrossentropy(from_logits=True))
    super().compile(optimizer, **kwargs)
    self.build_optimizer()

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta on a batch of (images, class ids[, sample weights])."""
    images, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    targets = self.targets(y)
    with tf.GradientTape() as tape:
      logits = self.logits(self.encode(images, training=True), training=True)
      loss = self.theta_loss(images, targets, logits, sample_weight)
    replicas.minimize(self.optimizer, tape, loss, self.theta)
    return self.training_results(loss, targets, logits, sample_weight)

  def theta_loss(self, images, targets, logits, sample_weight=None) -> tf.Tensor:
    """The compiled loss, with weight decay, of this replica's part of the batch."""
    # Keras' losses are a replica's share of the whole batch's.
    return replicas.count() * self.compute_loss(images, targets, logits, sample_weight)

  def training_results(
      self, loss, targets, logits, sample_weight=None) -> dict[str, tf.Tensor]:
    """Updates and reports loss and accuracy of training."""
    self.loss_tracker.update_state(loss, sample_weight=tf.shape(logits)[0])
    self.accuracy.update_state(
        tf.argmax(targets, axis=-1), tf.argmax(logits, axis=-1), sample_weight)
    return replicas.metric_results(self.loss_tracker, self.accuracy)

  def get_config(self):
    return {**super().get_config(), 'weight_decay': self.weight_decay}


def softmax_answers(logits: tf.Tensor) -> dict[str, tf.Tensor]:
  """The outputs of `Vanilla.answer`, from logits [B, M]."""
  probabilities = tf.nn.softmax(logits)
  return {
      'label': tf.argmax(logits, axis=-1, output_type=tf.int32),
      'confidence': tf.reduce_max(probabilities, axis=-1),
      'probabilities': probabilities,
      'logits': logits,
  }
