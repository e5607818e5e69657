"""Checks of models and data that are passed to a classifier, before any work."""

from typing import Any

import keras
import tensorflow as tf

from dble_tf.errors import UserError


def vector_size(role: str, model: keras.Model) -> int:
  """The length of the vectors that a built model gives; refuses any other output."""
  if not getattr(model, 'inputs', None):
    raise UserError(
        f'The {role} has no known input shape: wrap it as '
        'keras.Sequential([keras.Input(shape), model]).')
  shape = model.outputs[0].shape
  if len(shape) != 2:
    raise UserError(
        f'The {role} must give a vector per image; it gives shape {shape[1:]}.')
  return shape[-1]


def require_equal_parts(batches: Any, num_replicas: int) -> None:
  """Refuses training batches [B, ...] or [E, ...] without equal parts for replicas."""
  if num_replicas == 1:
    return
  size = None
  if isinstance(batches, tf.data.Dataset):
    size = keras.tree.flatten(batches.element_spec)[0].shape[0]
  if size is None:
    raise UserError(
        f'{num_replicas} replicas need batches of a fixed size: pass fit a '
        'tf.data.Dataset, batched with drop_remainder=True.')
  if size % num_replicas:
    raise UserError(
        f'{num_replicas} replicas cannot share {size} episodes or images a step '
        f'equally: make it a multiple of {num_replicas}, or use a single device.')


def require_labelled_batches(dataset: Any) -> None:
  """Refuses anything but a finite data set of batches of (images, class ids)."""
  if not (isinstance(dataset, tf.data.Dataset)
          and isinstance(dataset.element_spec, tuple)
          and len(dataset.element_spec) >= 2
          and dataset.cardinality() not in (0, tf.data.INFINITE_CARDINALITY)):
    raise UserError(
        'Calibration takes a finite tf.data.Dataset of batches of (images, class ids), '
        'such as Split.batches gives.')


def require_episodes(shape: tf.TensorShape, num_shots: int | None) -> None:
  """Refuses all but episodes [E, N, images a class, ...] with supports and queries."""
  if shape.rank is None or shape.rank < 4 or None in shape.as_list()[1:]:
    raise UserError(
        f'fit takes episodes [E, N, images a class, ...] of fixed size, not {shape}: '
        'make them with Dataset.episodes or dble_tf.data.episodes.episode_dataset.')
  if shape[2] < 2:
    raise UserError(
        'An episode holds a single image a class, which cannot be both a support and '
        'a query: take two or more.')
  if shape[2] <= (num_shots or 0):
    raise UserError(
        f'An episode holds {shape[2]} images a class, of which {num_shots} are '
        'supports: no query is left. Raise num_queries.')
