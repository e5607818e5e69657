"""Deep ensembles (Lakshminarayanan et al., 2017): networks of different seeds."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from dble_tf import replicas
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import Classifier
from dble_tf.classifier import likeliest
from dble_tf.classifier import metric_results
from dble_tf.classifier import regularization
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class DeepEnsemble(Classifier):
  """Several `Vanilla` networks, trained apart, whose probabilities are averaged.

  `fit` takes one batch for each member: (images, class ids) of shapes
  [B, members, H, W, C] and [B, members] (`member_batches`).

  Attributes:
    members: the networks.
  """

  def __init__(self, members: Sequence[Vanilla], **kwargs):
    if not members:
      raise UserError('An ensemble needs a member or more.')
    super().__init__(members[0].encoder, members[0].num_classes, **kwargs)
    self.members = list(members)

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images and says how sure it is.

    Returns:
      label: [B] int32, the likeliest class.
      confidence: [B], its probability.
      probabilities: [B, M], the average over the members.
    """
    probabilities = tf.add_n([
        member(images, training=training)['probabilities'] for member in self.members
    ]) / len(self.members)
    return likeliest(probabilities)

  def embed(self, images: tf.Tensor) -> tf.Tensor:
    """The representations of all members, one after the other: [B, members D]."""
    return tf.concat([member.embed(images) for member in self.members], axis=-1)

  @property
  def theta(self) -> list[keras.Variable]:
    """What `optimizer` moves: all members."""
    return [variable for member in self.members for variable in member.theta]

  @property
  def moving_statistics(self) -> list[keras.Variable]:
    return [variable for member in self.members
            for variable in member.moving_statistics]

  def compile(self, optimizer='sgd', **kwargs):
    """Keras' `compile`; the loss of each member is the cross-entropy, or `loss`."""
    kwargs.setdefault(
        'loss', keras.losses.CategoricalCrossentropy(from_logits=True))
    super().compile(optimizer, **kwargs)
    self.optimizer.build(self.theta)

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of each member on its own batch.

    Members have no weight in common, so one optimizer of the sum of their losses
    trains each as if it were alone. The logged loss is their mean.
    """
    images, targets, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if sample_weight is not None:
      raise UserError('An ensemble takes no sample weights.')
    if images.shape[1] != len(self.members):
      raise UserError(
          f'{len(self.members)} members need a batch each, stacked; these are '
          f'{images.shape[1]}: make them with member_batches.')
    loss_function = keras.losses.get(self.loss)
    with tf.GradientTape() as tape:
      losses = []
      for member, batch, y in zip(
          self.members, tf.unstack(images, axis=1), tf.unstack(targets, axis=1)):
        answers = member(batch, training=True)
        y = member.targets(y)
        # Keras' losses are a replica's share already.
        losses.append(loss_function(y, answers['logits'])
                      + replicas.share(regularization(member)))
        self.accuracy.update_state(tf.argmax(y, axis=-1), answers['label'])
      scaled_loss = self.optimizer.scale_loss(tf.add_n(losses))
    self.move_theta(tape, scaled_loss)
    self._loss_tracker.update_state(
        tf.add_n(losses) * replicas.count() / len(losses))
    return metric_results(self._loss_tracker, self.accuracy)

  def get_config(self):
    config = super().get_config()
    del config['encoder'], config['num_classes']  # The members'.
    config['members'] = [
        keras.saving.serialize_keras_object(member) for member in self.members]
    return config


def member_batches(streams: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
  """What `DeepEnsemble.fit` takes, from a stream of batches for each member."""
  return tf.data.Dataset.zip(*streams).map(
      lambda *batches: tuple(tf.stack(parts, axis=1) for parts in zip(*batches)))
