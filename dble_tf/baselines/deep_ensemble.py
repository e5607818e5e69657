"""Deep ensembles (Lakshminarayanan et al., 2017): networks of different seeds."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from dble_tf import replicas
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import Classifier
from dble_tf.classifier import likeliest
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

  def __init__(
      self, members: Sequence[Vanilla], *, name: str | None = None, **kwargs):
    """Joins networks that differ in their seeds.

    Args:
      members: the networks, of one kind of encoder.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    if not members:
      raise UserError('An ensemble needs at least one member.')
    super().__init__(
        members[0].encoder, members[0].num_classes, name=name, **kwargs)
    self.members = list(members)

  def encode(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """The representations of all members, one after the other: [B, members D]."""
    return tf.concat(
        [member.encode(images, training) for member in self.members], axis=-1)

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Labels the representations of all members, [B, members D].

    Returns:
      label: [B] int32, the likeliest class.
      confidence: [B], its probability.
      probabilities: [B, M], the average over the members.
    """
    probabilities = tf.add_n([
        member.answer(part)['probabilities'] for member, part in zip(
            self.members, tf.split(h, len(self.members), axis=-1))])
    return likeliest(probabilities / len(self.members))

  def take_trained(self, *others: Vanilla) -> None:
    """Copies the trained weights of models with the same encoder, one per member."""
    if len(others) != len(self.members):
      raise UserError(
          f'{len(self.members)} members take the weights of as many models; these are '
          f'{len(others)}.')
    for member, other in zip(self.members, others):
      member.take_trained(other)

  @property
  def theta(self) -> list[keras.Variable]:
    """The variables of all members."""
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
    self.build_optimizer()

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
    losses = []
    with tf.GradientTape() as tape:
      for member, batch, y in zip(
          self.members, tf.unstack(images, axis=1), tf.unstack(targets, axis=1)):
        y = member.targets(y)
        logits = member.logits(member.encode(batch, training=True), training=True)
        # Keras' losses are a replica's share of the whole batch's.
        losses.append(replicas.count() * loss_function(y, logits)
                      + regularization(member))
        self.accuracy.update_state(
            tf.argmax(y, axis=-1), tf.argmax(logits, axis=-1))
      loss = tf.add_n(losses)
    replicas.minimize(self.optimizer, tape, loss, self.theta)
    self.loss_tracker.update_state(loss / len(losses))
    return replicas.metric_results(self.loss_tracker, self.accuracy)

  def get_config(self):
    config = super().get_config()
    del config['encoder'], config['num_classes']  # The members'.
    config['members'] = [
        keras.saving.serialize_keras_object(member) for member in self.members]
    return config


def member_batches(streams: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
  """Stacks a stream of batches for each member as `DeepEnsemble.fit` takes them."""
  return tf.data.Dataset.zip(*streams).map(
      lambda *batches: tuple(tf.stack(parts, axis=1) for parts in zip(*batches)))
