"""What every method has in common: an encoder, and how answers are judged."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from dble_tf import metrics
from dble_tf import replicas
from dble_tf.errors import UserError


class Classifier(keras.Model):
  """A Keras model whose `call` gives label, confidence and probabilities.

  `evaluate` takes batches of (images, class ids) and reports accuracy, ECE and NLL
  of these three.

  A method is trained by `fit`, then completed by `complete` with what gradient
  descent does not give it.

  Attributes:
    encoder: f_theta, images -> representations [B, D].
    num_classes: M.
    needs_held_out: whether `complete` needs data that the encoder was not trained on.
  """

  needs_held_out = False

  def __init__(self, encoder: keras.Model, num_classes: int, **kwargs):
    super().__init__(**kwargs)
    self.encoder = encoder
    self.num_classes = num_classes
    self.representation_size = vector_size('encoder', encoder)
    self.accuracy = keras.metrics.Accuracy('accuracy')
    self.ece = metrics.ExpectedCalibrationError(name='ece')
    self.nll = keras.metrics.Mean('nll')
    # Constructors make all weights: Keras must not build the model by calling it on
    # what `fit` is given, which may be episodes.
    self.built = True

  def add_state(self, name: str, shape, initializer) -> keras.Variable:
    """A float32 weight that gradient descent does not move."""
    return self.add_weight(
        name=name, shape=shape, initializer=initializer, trainable=False,
        dtype='float32', autocast=False)

  @property
  def theta(self) -> list[keras.Variable]:
    """What `optimizer` moves."""
    return self.encoder.trainable_variables

  @property
  def moving_statistics(self) -> list[keras.Variable]:
    """What the encoder keeps of training batches beside theta, as batch norm does."""
    return self.encoder.non_trainable_weights

  @property
  def answering(self) -> list[keras.Variable]:
    """The trained variables that answers come from."""
    return self.trainable_variables

  def encode(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Eq. 4: images [B, H, W, C] -> representations [B, D]."""
    expected = tf.as_dtype(self.encoder.inputs[0].dtype)
    if expected.is_integer and not tf.as_dtype(images.dtype).is_integer:
      raise UserError(
          f'The encoder takes raw {expected.name} pixels and standardises them '
          f'itself; these images are {images.dtype}. Give it the images as they '
          'were before scaling.')
    return self.encoder(images, training=training)

  def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """What an export answers to images."""
    return self.served(self(images))

  def embed(self, images: tf.Tensor) -> tf.Tensor:
    """What an export gives as representations: [B, D] float32."""
    return tf.cast(self.encode(images), tf.float32)

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Of `call`'s outputs label [B], confidence [B] and probabilities [B, M]."""
    return {name: outputs[name] for name in ('label', 'confidence', 'probabilities')}

  def complete(
      self, train: tf.data.Dataset, held_out: tf.data.Dataset | None = None,
      verbose: int = 0,
  ) -> None:
    """Fits what inference needs and `fit` has not learned: nothing, in most methods.

    Args:
      train: batches of (images, class ids), the training set without augmentation.
      held_out: batches of (images, class ids) that `fit` has not seen.
      verbose: 1 shows a progress bar.
    """

  def require_fitted(self) -> None:
    """Raises a `UserError` where the model lacks what `complete` gives."""

  def require_complete(self) -> None:
    """Raises a `UserError` where the model is not ready to be exported."""
    self.require_fitted()

  def compile(self, *args, **kwargs):
    """Keras' `compile`, which refuses metrics that `evaluate` reports anyway."""
    super().compile(*args, **kwargs)
    if self._compile_metrics is not None:
      self._compile_metrics.build(
          keras.KerasTensor([None], 'int32'),
          keras.KerasTensor([None, self.num_classes]))
      taken = {'accuracy', 'ece', 'nll'} & {
          metric.name for metric in self._compile_metrics.metrics}
      if taken:
        raise UserError(
            f'evaluate reports {", ".join(sorted(taken))} already: leave it out of '
            'metrics, or give that metric another name.')

  def compile_from_config(self, config):
    self.compile(**keras.saving.deserialize_keras_object(config))

  def fit(self, x=None, *args, **kwargs):
    """Keras' `fit`; where there are several replicas, each gets an equal part."""
    require_equal_parts(x, self.distribute_strategy.num_replicas_in_sync)
    return super().fit(x, *args, **kwargs)

  def _maybe_symbolic_build(self, *args, **kwargs):
    """Nothing: all is built. Keras would, for replicas, average uint8 images."""

  def move_theta(self, tape: tf.GradientTape, loss: tf.Tensor) -> None:
    """Updates theta by a loss: this replica's share, scaled as `optimizer` asks."""
    replicas.apply(
        self.optimizer, replicas.gradients(tape, loss, self.theta), self.theta)

  def test_step(self, data) -> dict[str, tf.Tensor]:
    """Accuracy, ECE and NLL on a batch of (images, class ids[, sample weights])."""
    images, class_ids, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    class_ids = tf.reshape(tf.cast(class_ids, tf.int32), [-1])
    outputs = self(images, training=False)
    self.accuracy.update_state(class_ids, outputs['label'], sample_weight)
    self.ece.update_state(
        class_ids == outputs['label'], outputs['confidence'], sample_weight)
    self.nll.update_state(
        metrics.negative_log_likelihoods(class_ids, outputs['probabilities']),
        sample_weight)
    results = metric_results(self.accuracy, self.ece, self.nll)
    if self._compile_metrics is not None:
      self._compile_metrics.update_state(
          class_ids, outputs['probabilities'], sample_weight)
      results.update(metric_results(*self._compile_metrics.metrics))
    return results

  def export(self, filepath, *args, **kwargs):
    """Keras' `export`, with the encoder's input as the signature."""
    self.require_complete()
    inputs = self.encoder.inputs[0]
    kwargs.setdefault('input_signature', [
        keras.InputSpec(dtype=inputs.dtype, shape=inputs.shape, name='images')])
    return super().export(filepath, *args, **kwargs)

  def get_config(self):
    return {
        **super().get_config(),
        'encoder': keras.saving.serialize_keras_object(self.encoder),
        'num_classes': self.num_classes,
    }

  @classmethod
  def from_config(cls, config, custom_objects=None):
    return cls(**{
        name: keras.saving.deserialize_keras_object(
            value, custom_objects=custom_objects)
        for name, value in config.items()})


def vector_size(name: str, model: keras.Model) -> int:
  """How many numbers a built model gives per input; refuses one that gives none."""
  if not getattr(model, 'inputs', None):
    raise UserError(
        f'The {name} has no known input shape: wrap it as '
        'keras.Sequential([keras.Input(shape), model]).')
  shape = model.outputs[0].shape
  if len(shape) != 2:
    raise UserError(
        f'The {name} must give a vector per image; it gives shape {shape[1:]}.')
  return shape[-1]


def require_equal_parts(batches: tf.data.Dataset, num_replicas: int) -> None:
  """Refuses batches that cannot be split over replicas, each getting as much.

  Args:
    batches: what `fit` is given, of [B, ...] or, as episodes, [E, ...].
    num_replicas: how many share a batch.
  """
  if num_replicas == 1:
    return
  size = None
  if isinstance(batches, tf.data.Dataset):
    size = keras.tree.flatten(batches.element_spec)[0].shape[0]
  if size is None:
    raise UserError(
        f'{num_replicas} replicas need batches of a fixed size: give fit a '
        'tf.data.Dataset, batched with drop_remainder=True.')
  if size % num_replicas:
    raise UserError(
        f'{num_replicas} replicas cannot have equal parts of {size} episodes or images '
        f'a step: make it a multiple of {num_replicas} (--episodes_per_step), or one '
        'device (--strategy=none).')


def require_labelled_batches(dataset: tf.data.Dataset) -> None:
  """Refuses what is no finite data set of batches of (images, class ids)."""
  if not (isinstance(dataset, tf.data.Dataset)
          and isinstance(dataset.element_spec, tuple)
          and len(dataset.element_spec) >= 2
          and dataset.cardinality() not in (0, tf.data.INFINITE_CARDINALITY)):
    raise UserError(
        'Class centers and confidence are fitted on a finite tf.data.Dataset of '
        'batches of (images, class ids), such as Split.batches gives.')


def on_labelled_batches(
    step: Callable, model: keras.Model, dataset: tf.data.Dataset, verbose: int = 0
) -> Iterator:
  """Runs a function on batches, each split over the replicas of a model.

  Args:
    step: (model, images [B, H, W, C], class ids [B]) -> tensors in any structure;
      traced once for each model, so it must be no new function each time.
    model: a Keras model.
    dataset: batches of (images, class ids), with sample weights or without.
    verbose: 1 shows a progress bar.

  Yields:
    What the function gave, for each replica's part of each batch, in the data's order.
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
      lambda images, class_ids: step(model, images, tf.reshape(class_ids, [-1])),
      args=(images, class_ids))


def likeliest(probabilities: tf.Tensor) -> dict[str, tf.Tensor]:
  """Label [B], confidence [B] and probabilities [B, M] of the likeliest class."""
  return {
      'label': tf.argmax(probabilities, axis=-1, output_type=tf.int32),
      'confidence': tf.reduce_max(probabilities, axis=-1),
      'probabilities': probabilities,
  }


def predict_labelled(
    model: keras.Model, dataset: tf.data.Dataset, verbose: int = 0
) -> tuple[dict[str, np.ndarray] | np.ndarray, np.ndarray]:
  """What a model gives for each image, and the images' class ids, in one pass.

  Args:
    model: gives an array or a dictionary of arrays.
    dataset: batches of (images, class ids).
    verbose: 1 shows a progress bar.

  Returns:
    The outputs of all batches, and class ids [n] in the same order.
  """
  return keras.tree.map_structure(
      lambda *parts: np.concatenate(parts),
      *on_labelled_batches(_predict_with_labels, model, dataset, verbose))


def _predict_with_labels(model, images, class_ids):
  return model(images, training=False), class_ids


def regularization(model: keras.Model) -> tf.Tensor | float:
  """The sum of a model's own losses, such as weight decay."""
  return tf.add_n(model.losses) if model.losses else 0.0


def metric_results(*keras_metrics: keras.metrics.Metric) -> dict[str, tf.Tensor]:
  """Name -> result, over all replicas."""
  if replicas.count() == 1:
    return {metric.name: metric.result() for metric in keras_metrics}
  sums = iter(replicas.total([
      variable for metric in keras_metrics for variable in metric.variables]))
  return {
      metric.name: metric.stateless_result([next(sums) for _ in metric.variables])
      for metric in keras_metrics}
