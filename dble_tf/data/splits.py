"""What a data set is here: three splits of raw uint8 images and their class ids."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from sklearn import model_selection

from dble_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Split:
  """Images [n, H, W, C] uint8 and class ids [n] int32."""

  images: np.ndarray
  class_ids: np.ndarray

  def __len__(self) -> int:
    return len(self.class_ids)

  def batches(self, batch_size: int) -> tf.data.Dataset:
    """Batches of (images, class ids) in order, as `evaluate` and others take."""
    data = tf.data.Dataset.from_tensor_slices(self.tensors)
    return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

  @functools.cached_property
  def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Images and class ids in the host's memory, once for all that read them."""
    with tf.device('CPU'):
      # A constant keeps a second copy of its array alive, its identity does not.
      return (tf.identity(tf.constant(self.images)), tf.constant(self.class_ids))


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Train, validation and test splits, and what belongs to the data itself.

  Attributes:
    train: what theta, phi and the class centers are fitted on.
    validation: a stratified part of the original training set; may be empty.
    test: for figures alone.
    class_names: one name per class id.
    augmentation_policy: a key of `augmentation.POLICIES`, for training images.
  """

  train: Split
  validation: Split
  test: Split
  class_names: tuple[str, ...]
  augmentation_policy: str = 'none'

  @property
  def image_shape(self) -> tuple[int, ...]:
    return self.train.images.shape[1:]

  @property
  def num_classes(self) -> int:
    return len(self.class_names)


def from_arrays(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    class_names: Sequence[str] | None = None,
    validation_size: int = 0,
    seed: int = 0,
    augmentation_policy: str = 'none',
) -> Dataset:
  """A data set from NumPy arrays.

  Args:
    train: images [n, H, W, C] or [n, H, W] uint8 and class ids [n] in 0..M-1.
    test: the same.
    class_names: M names; the class ids themselves where none are given.
    validation_size: how many images of `train` become the validation split, drawn
      in proportion to the classes.
    seed: of that draw.
    augmentation_policy: a key of `augmentation.POLICIES`.
  """
  train, test = _split('train', *train), _split('test', *test)
  num_classes = int(train.class_ids.max()) + 1
  if class_names is None:
    class_names = [str(class_id) for class_id in range(num_classes)]
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UserError(
        f'Training images are of shape {train.images.shape[1:]}, test images of '
        f'shape {test.images.shape[1:]}: resize them to one.')
  missing = np.setdiff1d(np.arange(len(class_names)), train.class_ids)
  if missing.size:
    raise UserError(
        f'The train split has no image of class {missing[0]} '
        f'({class_names[missing[0]]}).')
  for name, split in (('train', train), ('test', test)):
    if split.class_ids.max(initial=0) >= len(class_names):
      raise UserError(
          f'The {name} split has class id {split.class_ids.max()}, but there are '
          f'only {len(class_names)} classes.')
  train, validation = _hold_out(train, validation_size, seed)
  return Dataset(
      train, validation, test, tuple(class_names), augmentation_policy)


def _split(name, images, class_ids):
  images, class_ids = np.asarray(images), np.asarray(class_ids).reshape(-1)
  if images.ndim == 3:
    images = images[..., np.newaxis]
  if images.dtype != np.uint8 or images.ndim != 4:
    raise UserError(
        f'The {name} images must be uint8 of shape [n, height, width, channels]; '
        f'these are {images.dtype} of shape {list(images.shape)}.')
  if len(images) != len(class_ids):
    raise UserError(
        f'The {name} split has {len(images)} images but {len(class_ids)} labels.')
  if len(images) == 0:
    raise UserError(f'The {name} split is empty.')
  if not np.issubdtype(class_ids.dtype, np.integer) or class_ids.min() < 0:
    raise UserError(f'The {name} labels must be integers from 0.')
  return Split(images, class_ids.astype(np.int32))


def _hold_out(train, size, seed):
  """Moves `size` images of the training set, class by class, to a new split."""
  if size == 0:
    return train, Split(train.images[:0], train.class_ids[:0])
  counts = np.bincount(train.class_ids)
  num_classes = int((counts > 0).sum())
  if not num_classes <= size <= len(train) - num_classes:
    raise UserError(
        f'A validation split of {size} images cannot be drawn from {len(train)} '
        f'training images of {num_classes} classes: it must leave and take at '
        'least one of each. Change validation_size.')
  if counts[counts > 0].min() < 2:
    raise UserError(
        f'Class {int(np.argmax(counts == 1))} has a single training image, which '
        'cannot be split: set validation_size to 0 or leave out the class.')
  kept, held_out = model_selection.train_test_split(
      np.arange(len(train)), test_size=size, random_state=seed,
      stratify=train.class_ids)
  kept.sort(), held_out.sort()
  return (Split(train.images[kept], train.class_ids[kept]),
          Split(train.images[held_out], train.class_ids[held_out]))
