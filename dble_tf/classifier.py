"""The base of every method: how images are answered, calibrated and judged."""

import inspect
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from dble_tf import checks
from dble_tf import metrics
from dble_tf import replicas
from dble_tf.errors import UserError
from dble_tf.validation import ValidatedModel

_BATCH = 1000


class Representations(NamedTuple):
  """Encoded images.

  Attributes:
    h: [n, D] float32.
    class_ids: [n], their classes.
  """

  h: np.ndarray
  class_ids: np.ndarray


class Classifier(ValidatedModel):
  """A Keras model that gives each image a label, a confidence and probabilities.

  An image is encoded once (`encode`); `answer` turns its representation into outputs.
  `evaluate` takes batches of (images, class ids) and reports the NLL, as the loss too,
  accuracy and ECE. `fit` trains; `calibrate` then fits what gradient descent does not.

  A method overrides `answer` and `train_step` and, where it has something to calibrate,
  `fit_train`, `fit_held_out`, `forget_calibration` and what says that it is missing.

  Attributes:
    encoder: f_theta, images -> representations [B, D].
    num_classes: M.
    needs_held_out: whether calibration is impossible without images that `fit` has not
      seen.
  """

  needs_held_out = False

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      name: str | None = None,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    super().__init__(name=name, **kwargs)
    self.encoder = encoder
    self.num_classes = num_classes
    self.representation_size = checks.vector_size('encoder', encoder)
    self.loss_tracker = keras.metrics.Mean('loss')
    self.accuracy = keras.metrics.Accuracy('accuracy')
    self.ece = metrics.ExpectedCalibrationError(name='ece')
    self.nll = keras.metrics.Mean('nll')
    # Constructors make all weights: Keras must not build the model by calling it on
    # what `fit` is given, which may be episodes.
    self.built = True

  def add_state(self, name: str, shape, initializer) -> keras.Variable:
    """Adds a float32 weight that gradient descent does not move."""
    return self.add_weight(
        name=name, shape=shape, initializer=initializer, trainable=False,
        dtype='float32', autocast=False)

  @property
  def theta(self) -> list[keras.Variable]:
    """The variables that `optimizer` moves."""
    return self.encoder.trainable_variables

  @property
  def moving_statistics(self) -> list[keras.Variable]:
    """Statistics that the encoder keeps of training batches, such as batch norm's."""
    return self.encoder.non_trainable_weights

  @property
  def takes_held_out(self) -> bool:
    """True if calibration makes use of images that `fit` has not seen."""
    return self.needs_held_out

  @property
  def inference_variables(self) -> list[keras.Variable]:
    """The trained variables that answers depend on."""
    return self.trainable_variables

  # Inference

  def encode(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Eq. 4: images [B, H, W, C] -> representations [B, D]."""
    expected = tf.as_dtype(self.encoder.inputs[0].dtype)
    if expected.is_integer and not tf.as_dtype(images.dtype).is_integer:
      raise UserError(
          f'The encoder takes raw {expected.name} pixels and standardizes them '
          f'itself; these images are {images.dtype}. Pass the images as they were '
          'before scaling.')
    return self.encoder(images, training=training)

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Representations [B, D] -> label [B], confidence [B], probabilities [B, M], …"""
    raise NotImplementedError

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images [B, H, W, C] with their confidences; see `answer`."""
    return self.answer(self.encode(images, training))

  def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """The answers of an export, every output with the batch as its first axis."""
    return self.served(self(images))

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Selects what an export gives: label, confidence and probabilities."""
    return {name: outputs[name] for name in ('label', 'confidence', 'probabilities')}

  def embed(self, images: tf.Tensor) -> tf.Tensor:
    """The representations of an export: [B, D] float32."""
    return tf.cast(self.encode(images), tf.float32)

  def represent(self, dataset: tf.data.Dataset, verbose: int = 0) -> Representations:
    """Encodes batches of (images, class ids), in their order."""
    checks.require_labelled_batches(dataset)
    parts = replicas.map_batches(_represent, self, dataset, verbose)
    return Representations(*map(np.concatenate, zip(*parts)))

  def predict_from(self, h: np.ndarray) -> dict[str, np.ndarray]:
    """`predict` for representations [n, D] instead of images."""
    self.require_fitted()
    answers = [_answer(self, h[start:start + _BATCH])
               for start in range(0, len(h), _BATCH)]
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *answers)

  # Calibration

  def calibrate(
      self,
      train: tf.data.Dataset,
      held_out: tf.data.Dataset | Representations | None = None,
      verbose: int = 0,
  ) -> None:
    """Fits what inference needs and gradient descent does not give.

    Args:
      train: batches of (images, class ids), the training set without augmentation.
      held_out: batches that `fit` has not seen, or their representations.
      verbose: 1 shows progress bars.
    """
    if self.needs_held_out and held_out is None:
      raise UserError(
          f'{type(self).__name__} is calibrated on images that the encoder was not '
          'trained on: pass them as held_out.')
    if self.needs_statistics() and isinstance(held_out, Representations):
      raise UserError(
          'These representations are of averaged weights with batch-norm statistics of '
          'others: call take_averages(train) before represent.')
    self.fit_statistics(train, verbose)
    if not self.takes_held_out:
      held_out = None
    if held_out is not None and not isinstance(held_out, Representations):
      held_out = self.represent(held_out, verbose)
    self.fit_train(train, verbose)
    if held_out is not None:
      self.fit_held_out(held_out)

  def fit_train(self, train: tf.data.Dataset, verbose: int = 0) -> None:
    """Fits what comes from the training set, unless it is valid already."""

  def fit_held_out(self, held_out: Representations) -> None:
    """Fits what comes from held-out images."""

  def forget_calibration(self) -> None:
    """Invalidates what was fitted: training moves what it was fitted to."""

  def require_fitted(self) -> None:
    """Raises a `UserError` where the model cannot answer yet."""

  def require_calibrated(self) -> None:
    """Raises a `UserError` where the model is not ready to be exported."""
    self.require_fitted()

  # Training

  @property
  def metrics(self) -> list[keras.metrics.Metric]:
    """The model's own loss first; Keras' tracker of that name is not used."""
    return [self.loss_tracker,
            *(metric for metric in super().metrics if metric.name != 'loss')]

  def _compiled_metrics(self):
    """The metrics given to `compile`: one object, or none."""
    return [metric for metric in self.metrics if metric.name == 'compile_metrics']

  def compile(self, *args, **kwargs):
    """Keras' `compile`, which refuses metrics that `evaluate` reports anyway."""
    super().compile(*args, **kwargs)
    for compiled in self._compiled_metrics():
      compiled.build(keras.KerasTensor([None], 'int32'),
                     keras.KerasTensor([None, self.num_classes]))
      taken = {'loss', 'accuracy', 'ece', 'nll'} & {
          metric.name for metric in compiled.metrics}
      if taken:
        raise UserError(
            f'evaluate reports {", ".join(sorted(taken))} already: leave it out of '
            'metrics, or give that metric another name.')

  def compile_from_config(self, config):
    self.compile(**keras.saving.deserialize_keras_object(config))

  def _maybe_symbolic_build(self, *args, **kwargs):
    """Skips Keras' build on a training batch: all is built.

    There is no public way: with replicas Keras takes the mean of uint8 batches first,
    which fails.
    """

  def test_step(self, data) -> dict[str, tf.Tensor]:
    """NLL, accuracy and ECE on a batch of (images, class ids[, sample weights])."""
    images, class_ids, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    class_ids = tf.reshape(tf.cast(class_ids, tf.int32), [-1])
    outputs = self(images, training=False)
    nlls = metrics.negative_log_likelihoods(class_ids, outputs['probabilities'])
    self.loss_tracker.update_state(nlls, sample_weight)
    self.accuracy.update_state(class_ids, outputs['label'], sample_weight)
    self.ece.update_state(
        class_ids == outputs['label'], outputs['confidence'], sample_weight)
    self.nll.update_state(nlls, sample_weight)
    compiled = self._compiled_metrics()
    for metric in compiled:
      metric.update_state(class_ids, outputs['probabilities'], sample_weight)
    return replicas.metric_results(
        self.loss_tracker, self.accuracy, self.ece, self.nll, *compiled)

  # Serialization

  def export(self, filepath, *args, **kwargs):
    """Keras' `export`, with the encoder's input as the signature."""
    self.require_calibrated()
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
    # Before anything is deserialized: parts of another version may fail on their own.
    known = {name for base in cls.__mro__ if '__init__' in vars(base)
             for name in inspect.signature(base.__init__).parameters}
    unknown = sorted(config.keys() - known)
    if unknown:
      raise UserError(
          f'This {cls.__name__} was saved by another version of dble_tf, with '
          f'arguments that this one does not know ({", ".join(unknown)}): load it with '
          'the version that saved it, or train again.')
    return cls(**{
        name: keras.saving.deserialize_keras_object(
            value, custom_objects=custom_objects)
        for name, value in config.items()})


def _represent(model, images, class_ids):
  return tf.cast(model.encode(images), tf.float32), class_ids


@tf.function(reduce_retracing=True)
def _answer(model, h):
  return model.answer(h)


def likeliest(probabilities: tf.Tensor) -> dict[str, tf.Tensor]:
  """Label [B], confidence [B] and probabilities [B, M] of the likeliest class."""
  return {
      'label': tf.argmax(probabilities, axis=-1, output_type=tf.int32),
      'confidence': tf.reduce_max(probabilities, axis=-1),
      'probabilities': probabilities,
  }


def regularization(model: keras.Model) -> tf.Tensor | float:
  """The sum of a model's own losses, such as weight decay."""
  return tf.add_n(model.losses) if model.losses else 0.0
