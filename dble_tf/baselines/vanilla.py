"""Plain training: softmax cross-entropy on a linear layer."""

import keras
import tensorflow as tf

from dble_tf import replicas
from dble_tf.classifier import Classifier
from dble_tf.classifier import metric_results


@keras.saving.register_keras_serializable(package='dble_tf')
class Vanilla(Classifier):
  """An encoder and a linear layer; its confidence is the softmax at the label.

  `fit` takes batches of (images, class ids) (`batches.batch_dataset`), or of images and
  target distributions [B, M].
  """

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      weight_decay: float = 5e-4,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      weight_decay: factor of the linear layer's kernel in its own gradient.
      **kwargs: as for any `keras.Model`.
    """
    super().__init__(encoder, num_classes, **kwargs)
    self.weight_decay = weight_decay
    self.linear = keras.layers.Dense(
        num_classes, dtype='float32',
        kernel_regularizer=keras.regularizers.L2(weight_decay / 2))
    self.linear.build([None, self.representation_size])

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images and says how sure it is.

    Args:
      images: [B, H, W, C], as the encoder takes them.
      training: passed on to the encoder.

    Returns:
      label: [B] int32.
      confidence: [B], the softmax at that label.
      probabilities: [B, M].
      logits: [B, M].
    """
    return self.answers(self.linear(self.encode(images, training)))

  def answers(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """What `call` returns, from logits [B, M]."""
    probabilities = tf.nn.softmax(logits)
    return {
        'label': tf.argmax(logits, axis=-1, output_type=tf.int32),
        'confidence': tf.reduce_max(probabilities, axis=-1),
        'probabilities': probabilities,
        'logits': logits,
    }

  @property
  def theta(self) -> list[keras.Variable]:
    """What `optimizer` moves: the encoder and the linear layer."""
    return [*super().theta, *self.linear.trainable_variables]

  def take_trained(self, other: 'Vanilla') -> None:
    """Takes what `fit` learned in another model of the same encoder."""
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
    self.optimizer.build(self.theta)

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta on a batch of (images, class ids[, sample weights])."""
    images, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
      answers = self(images, training=True)
      # Keras' losses are a replica's share already.
      loss = self.compute_loss(images, y, answers, sample_weight)
      scaled_loss = self.optimizer.scale_loss(loss)
    self.move_theta(tape, scaled_loss)
    self._loss_tracker.update_state(
        loss * replicas.count(), sample_weight=tf.shape(images)[0])
    return self.compute_metrics(images, y, answers, sample_weight)

  def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None,
                   training=True):
    """The loss of logits against class ids or distributions."""
    return super().compute_loss(
        x, self.targets(y), y_pred['logits'], sample_weight, training)

  def compute_metrics(self, x, y, y_pred, sample_weight=None):
    """Loss and accuracy of training."""
    self.accuracy.update_state(
        tf.argmax(self.targets(y), axis=-1), y_pred['label'], sample_weight)
    return metric_results(self._loss_tracker, self.accuracy)

  def get_config(self):
    return {**super().get_config(), 'weight_decay': self.weight_decay}
