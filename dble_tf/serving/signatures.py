"""What an export can be asked: functions for TF Serving, with their inputs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from dble_tf.data import image_bytes
from dble_tf.classifier import Classifier
from dble_tf.errors import UserError


class Signature(NamedTuple):
  """A function from one batch to named batches, and what it takes."""

  function: Callable[[tf.Tensor], dict[str, tf.Tensor]]
  takes: tf.TensorSpec


def signatures(
    model: Classifier, class_names: Sequence[str], threshold: float
) -> dict[str, Signature]:
  """The signatures of an export by name; every output has the batch first.

  `serving_default` takes images as they were before standardisation and gives what
  `model.serve` does, `label_name` and `accept`: whether the confidence reaches the
  threshold. `serving_bytes` takes PNG and JPEG files of any size and gives the same; it
  is there where images have one channel or three. `embed` gives representations.

  TF Serving does not compare shapes with the signature's, so they do it themselves;
  none answers with anything but finite numbers.
  """
  if len(class_names) != model.num_classes:
    raise UserError(
        f'The model knows {model.num_classes} classes, but there are '
        f'{len(class_names)} class names.')
  inputs = model.encoder.inputs[0]
  shape, dtype = inputs.shape[1:], tf.as_dtype(inputs.dtype)
  images_spec = tf.TensorSpec([None, *shape], dtype, name='images')
  bytes_spec = tf.TensorSpec([None], tf.string, name='image_bytes')

  @tf.function(input_signature=[images_spec])  # Once in the graph, for both.
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
  """The same values; fails where they have another shape than declared, or are NaN."""
  # Behind this op the shape is unknown to TensorFlow, which else would trust the
  # signature and leave the check out.
  values = tf.compat.v1.placeholder_with_default(values, None, name=spec.name)
  values = tf.ensure_shape(values, spec.shape)
  if spec.dtype.is_floating:
    values = tf.debugging.check_numerics(values, f'{spec.name} must be finite numbers')
  return values


def _finite(outputs):
  return {
      name: tf.debugging.check_numerics(values, f'{name} is not a finite number')
      if values.dtype.is_floating else values for name, values in outputs.items()}
