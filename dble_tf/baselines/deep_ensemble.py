"""Deep ensembles (Lakshminarayanan et al., 2017): networks of different seeds."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import Classifier
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class DeepEnsemble(Classifier):
  """Several `Vanilla` networks, trained apart, whose probabilities are averaged.

  `fit` takes one batch for each member: (images, class ids) of shapes
  [members, B, H, W, C] and [members, B] (`member_batches`).

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
    return {
        'label': tf.argmax(probabilities, axis=-1, output_type=tf.int32),
        'confidence': tf.reduce_max(probabilities, axis=-1),
        'probabilities': probabilities,
    }

  @property
  def theta(self) -> list[keras.Variable]:
    """What the optimizers move: all members."""
    return [variable for member in self.members for variable in member.theta]

  @property
  def metrics(self) -> list[keras.metrics.Metric]:
    """The members' too: Keras leaves out those of models within a model."""
    return [*super().metrics,
            *(metric for member in self.members for metric in member.metrics)]

  def compile(self, optimizer='sgd', **kwargs):
    """Keras' `compile`, with a copy of the optimizer for each member."""
    super().compile(optimizer, **kwargs)
    for member in self.members:
      member.compile(self.optimizer.from_config(self.optimizer.get_config()))

  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of each member on its own batch; logs are means over the members."""
    images, class_ids, _ = keras.utils.unpack_x_y_sample_weight(data)
    logs = [member.train_step(batch) for member, *batch in zip(
        self.members, tf.unstack(images), tf.unstack(class_ids))]
    return {name: tf.add_n([log[name] for log in logs]) / len(logs)
            for name in logs[0]}

  def get_config(self):
    config = super().get_config()
    del config['encoder'], config['num_classes']  # The members'.
    config['members'] = [
        keras.saving.serialize_keras_object(member) for member in self.members]
    return config


def member_batches(streams: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
  """What `DeepEnsemble.fit` takes, from a stream of batches for each member."""
  return tf.data.Dataset.zip(*streams).map(
      lambda *batches: tuple(tf.stack(parts) for parts in zip(*batches)))
