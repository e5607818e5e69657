"""Cross-replica helpers for training steps and for passes over a data set.

Each replica has an equal part of a batch. The mean over replicas of the loss that each
computes is the loss of the whole batch; what is logged, and how weights move, are the
whole batch's. With a single replica all of this is the identity.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

# Apart enough that the seeds of two replicas never meet.
_SEED_STRIDE = 1_000_003


def count() -> int:
  """The number of replicas in sync."""
  context = tf.distribute.get_replica_context()
  return context.num_replicas_in_sync if context else 1


def index() -> tf.Tensor | int:
  """This replica's place, from 0: it has that part of the batch."""
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


def minimize(
    optimizer: keras.optimizers.Optimizer,
    tape: tf.GradientTape,
    loss: tf.Tensor,
    variables: Sequence[keras.Variable],
    skip_non_finite: bool = False,
) -> None:
  """Moves variables down the gradient of the whole batch's loss.

  The same on every replica, with the optimizer's loss scaling and with its clipping
  applied to the whole batch's gradient.

  Args:
    optimizer: built on `variables`.
    tape: has recorded `loss`.
    loss: a scalar, of this replica's part of the batch.
    variables: what moves.
    skip_non_finite: replaces a variable's gradient by zero where it is not finite.
  """
  # Seeding backpropagation with the factor scales the loss.
  gradients = tape.gradient(
      loss, variables,
      output_gradients=tf.cast(optimizer.scale_loss(1.0 / count()), loss.dtype))
  sums = iter(total([gradient for gradient in gradients if gradient is not None]))
  gradients = [None if gradient is None else next(sums) for gradient in gradients]
  if skip_non_finite and not isinstance(
      optimizer, keras.optimizers.LossScaleOptimizer):
    # A loss-scaling optimizer must see non-finite gradients: it skips those steps.
    gradients = [
        None if gradient is None
        else tf.where(tf.reduce_all(tf.math.is_finite(gradient)), gradient, 0.0)
        for gradient in gradients]
  if count() > 1:
    # Keras clips what each replica gives it, then sums: all but the first give zeros,
    # so that the whole batch's gradient is clipped. Products, not constants: a
    # non-finite gradient must be non-finite on every replica.
    is_first = tf.cast(tf.equal(index(), 0), tf.float32)
    gradients = [
        None if gradient is None else gradient * tf.cast(is_first, gradient.dtype)
        for gradient in gradients]
  optimizer.apply(gradients, variables)


def training_step(train_step: Callable) -> Callable:
  """Decorates a model's `train_step` with what Keras leaves to each replica.

  Random layers, whose states start equal everywhere, draw different numbers on each
  replica; their states are equal again after the step. The model's
  `moving_statistics`, such as batch norm's, become the means over the replicas.
  """

  @functools.wraps(train_step)
  def step(model, data):
    if count() == 1:
      return train_step(model, data)
    states = [variable for variable in model.non_trainable_variables
              if variable.name == 'seed_generator_state']
    offset = tf.stack([index() * _SEED_STRIDE, 0])
    for state in states:
      state.assign_add(tf.cast(offset, state.dtype))
    logs = train_step(model, data)
    for state in states:
      state.assign_sub(tf.cast(offset, state.dtype))
    statistics = model.moving_statistics
    for variable, average in zip(statistics, mean(statistics)):
      variable.assign(average)
    return logs

  return step


def metric_results(*metrics: keras.metrics.Metric) -> dict[str, tf.Tensor]:
  """Name -> result over all replicas; a metric of several adds each of them."""
  results = {}
  sums = iter(total([
      variable for metric in metrics for variable in metric.variables]))
  for metric in metrics:
    result = (
        metric.result() if count() == 1
        else metric.stateless_result([next(sums) for _ in metric.variables]))
    results.update(result if isinstance(result, dict) else {metric.name: result})
  return results


def map_batches(
    step: Callable, model: keras.Model, dataset: tf.data.Dataset, verbose: int = 0
) -> Iterator:
  """Runs a function on labelled batches, each split over the replicas of a model.

  Args:
    step: (model, images [B, H, W, C], class ids [B]) -> tensors in any structure. It is
      traced once for each model, so it must not be a new function on each call.
    model: a Keras model.
    dataset: batches of (images, class ids[, sample weights]).
    verbose: 1 shows a progress bar.

  Yields:
    The results for each replica's part of each batch, in the order of the data.
  """
  strategy = model.distribute_strategy
  size = int(dataset.cardinality())
  progress = keras.utils.Progbar(size if size > 0 else None, verbose=verbose)
  for images, class_ids, *_ in strategy.experimental_distribute_dataset(dataset):
    outputs = _on_replicas(step, model, images, class_ids)
    parts = map(strategy.experimental_local_results, keras.tree.flatten(outputs))
    for part in zip(*parts):
      yield keras.tree.pack_sequence_as(outputs, part)
    progress.add(1)


@tf.function(reduce_retracing=True)
def _on_replicas(step, model, images, class_ids):
  return model.distribute_strategy.run(
      lambda images, class_ids: step(
          model, images, tf.cast(tf.reshape(class_ids, [-1]), tf.int32)),
      args=(images, class_ids))
