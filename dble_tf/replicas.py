"""What a training step does where it is one of several replicas of a model.

Each replica has an equal part of a batch. The loss that it computes is such that the
mean over replicas is the loss of the whole batch; what it logs and how it moves the
weights are the whole batch's. Where there is one replica, nothing is done here.
"""

import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

_SEEDS_APART = 1_000_003


def count() -> int:
  """How many replicas are at work."""
  context = tf.distribute.get_replica_context()
  return context.num_replicas_in_sync if context else 1


def index() -> tf.Tensor | int:
  """Which of them this is, from 0: it has that part of the batch."""
  context = tf.distribute.get_replica_context()
  return context.replica_id_in_sync_group if context else 0


def total(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Sums of each value over the replicas."""
  return _reduce(tf.distribute.ReduceOp.SUM, values)


def mean(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Means of each value over the replicas."""
  return _reduce(tf.distribute.ReduceOp.MEAN, values)


def _reduce(operation, values):
  if count() == 1 or not values:
    return list(values)
  return tf.distribute.get_replica_context().all_reduce(
      operation, [tf.convert_to_tensor(value) for value in values])


def share(loss: tf.Tensor) -> tf.Tensor:
  """A replica's part of the loss of the whole batch, which is their sum."""
  return loss / count()


def gradients(
    tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]
) -> list[tf.Tensor | None]:
  """The gradients of the whole batch's loss, of each replica's share of it."""
  own = tape.gradient(loss, variables)
  sums = iter(total([gradient for gradient in own if gradient is not None]))
  return [None if gradient is None else next(sums) for gradient in own]


def apply(
    optimizer: keras.optimizers.Optimizer,
    whole_gradients: Sequence[tf.Tensor | None],
    variables: Sequence[keras.Variable],
) -> None:
  """Updates variables by gradients of the whole batch, the same on every replica.

  Keras clips what each replica gives it and then sums: all but the first give zeros,
  so that the whole batch's gradients are clipped, as by one replica.
  """
  if count() > 1:
    # Products, not constants: what is not finite must be so on every replica.
    is_first = tf.cast(tf.equal(index(), 0), tf.float32)
    whole_gradients = [
        None if gradient is None else gradient * tf.cast(is_first, gradient.dtype)
        for gradient in whole_gradients]
  optimizer.apply(whole_gradients, variables)


def training_step(train_step: Callable) -> Callable:
  """Decorates a model's `train_step`: what Keras does not do for replicas.

  Random layers, which start equal everywhere, draw numbers of each replica's own; their
  state is the same again behind the step. `moving_statistics` of the model, such as
  batch norm's, become the means over the replicas.
  """

  @functools.wraps(train_step)
  def step(model, data):
    if count() == 1:
      return train_step(model, data)
    states = [variable for variable in model.non_trainable_variables
              if variable.name == 'seed_generator_state']
    apart = tf.stack([index() * _SEEDS_APART, 0])
    for state in states:
      state.assign_add(tf.cast(apart, state.dtype))
    logs = train_step(model, data)
    for state in states:
      state.assign_sub(tf.cast(apart, state.dtype))
    statistics = model.moving_statistics
    for variable, average in zip(statistics, mean(statistics)):
      variable.assign(average)
    return logs

  return step
