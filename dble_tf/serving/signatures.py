"""Signatures of an export: functions that TF Serving runs, and their inputs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from dble_tf.classifier import Classifier
from dble_tf.data import image_bytes
from dble_tf.errors import UserError


class Signature(NamedTuple):
  """A function from one batch to named batches, and the batch's type and shape."""

  function: Callable[[tf.Tensor], dict[str, tf.Tensor]]
  takes: tf.TensorSpec


def signatures(
    model: Classifier, class_names: Sequence[str], threshold: float
) -> dict[str, Signature]:
  """Makes the signatures of an export, by name; axis 0 of every output is the batch.

  - `serving_default`: raw images [B, H, W, C], as the encoder takes them -> the outputs
    of `model.serve`, `label_name` [B] and `accept` [B], which is true if the confidence
    reaches the threshold.
  - `serving_bytes`: PNG and JPEG files [B] of any size -> the same; only if images have
    one channel or three.
  - `embed`: raw images -> `representation` [B, D].

  TF Serving does not check shapes against the signature, so the functions do. A
  non-finite input or output is an error.

  Args:
    model: trained and calibrated.
    class_names: [M].
    threshold: the confidence from which answers are accepted.
  """
  if len(class_names) != model.num_classes:
    raise UserError(
        f'The model has {model.num_classes} classes, but class_names has '
        f'{len(class_names)} names: pass one per class.')
  inputs = model.encoder.inputs[0]
  shape, dtype = inputs.shape[1:], tf.as_dtype(inputs.dtype)
  images_spec = tf.TensorSpec([None, *shape], dtype, name='images')
  bytes_spec = tf.TensorSpec([None], tf.string, name='image_bytes')

  @tf.function(input_signature=[images_spec])  # One subgraph shared by both.
  def answers(images):
    outputs = model.serve(images)
    return _finite({
        **outputs,
        'label_name': tf.gather(tf.constant(list(class_names)), outputs['label']),
        'accept': outputs['confidence'] >= threshold,
    })

  def answer_images(images):
    return answers(_as_declared(images, images_spec))

  def answer_bytes(files):
    files = _as_declared(files, bytes_spec)
    return answers(tf.cast(image_bytes.decode(files, shape), dtype))

  def embed(images):
    representation = model.embed(_as_declared(images, images_spec))
    return _finite({'representation': representation})

  result = {'serving_default': Signature(answer_images, images_spec)}
  if len(shape) == 3 and shape[-1] in (1, 3):
    result['serving_bytes'] = Signature(answer_bytes, bytes_spec)
  return {**result, 'embed': Signature(embed, images_spec)}


def _as_declared(values, spec):
  """Returns the values, or fails if their shape is wrong or one is not finite."""
  # This op hides the static shape: TensorFlow would trust the signature and optimize
  # the check away.
  values = tf.compat.v1.placeholder_with_default(values, None, name=spec.name)
  values = tf.ensure_shape(values, spec.shape)
  if spec.dtype.is_floating:
    values = tf.debugging.check_numerics(values, f'{spec.name} must be finite')
  return values


def _finite(outputs):
  return {
      name: tf.debugging.check_numerics(values, f'{name} is not finite')
      if values.dtype.is_floating else values for name, values in outputs.items()}
