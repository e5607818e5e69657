"""The `Dataset` class: three splits of raw uint8 images and their class ids."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dble_tf.data.batches import batch_dataset
from dble_tf.data.episodes import episode_dataset
from dble_tf.data.episodes import EpisodeSampler
from dble_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Split:
  """Images [n, H, W, C] uint8 and class ids [n] int32."""

  images: np.ndarray
  class_ids: np.ndarray

  def __len__(self) -> int:
    return len(self.class_ids)

  def batches(self, batch_size: int) -> tf.data.Dataset:
    """Returns one pass of (images, class ids) batches, in order and unaugmented."""
    data = tf.data.Dataset.from_tensor_slices(self.tensors)
    return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

  @functools.cached_property
  def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Images and class ids in host memory, shared by all pipelines that read them."""
    with tf.device('CPU'):
      # tf.constant keeps a second copy of the array alive; its identity does not.
      return (tf.identity(tf.constant(self.images)), tf.constant(self.class_ids))


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Train, validation and test splits with their class names and augmentation.

  Attributes:
    train: images that theta, phi and the class centers are fitted on.
    validation: a stratified part of the original training set; may be empty.
    test: images used for evaluation only.
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

  def episodes(
      self,
      num_shots: int,
      num_queries: int,
      *,
      num_ways: int | None = None,
      episodes_per_step: int = 1,
      seed: int = 0,
      start: int = 0,
  ) -> tf.data.Dataset:
    """Streams augmented training episodes endlessly (Section 3.1.1, Algorithm 1).

    An episode has K + K_Q images of each of its classes. Leave-one-out training uses
    all of them as both supports and queries, so only the sum matters there.

    Args:
      num_shots: K, the supports per class.
      num_queries: K_Q, the queries per class.
      num_ways: N, the classes per episode; all classes if None.
      episodes_per_step: E, the episodes per training step.
      seed: random seed for the episodes and their augmentation.
      start: index of the first step; step s begins at episode s * E.

    Returns:
      A `tf.data.Dataset` of [E, N, K + K_Q, H, W, C] uint8 tensors, one per step.
    """
    ways = self.num_classes if num_ways is None else num_ways
    sampler = EpisodeSampler(
        self.train.class_ids, ways, num_shots + num_queries, seed)
    images, _ = self.train.tensors
    return episode_dataset(
        images, sampler, episodes_per_step, start * episodes_per_step,
        self.augmentation_policy)

  def training_batches(
      self, batch_size: int, *, seed: int = 0, start: int = 0
  ) -> tf.data.Dataset:
    """Streams shuffled, augmented training batches endlessly.

    Args:
      batch_size: B.
      seed: random seed for shuffling and augmentation.
      start: index of the first batch.

    Returns:
      A `tf.data.Dataset` of ([B, H, W, C] uint8, [B] int32) tensors, one per step.
    """
    return batch_dataset(
        *self.train.tensors, batch_size, seed, start, self.augmentation_policy)

  @functools.cached_property
  def fingerprint(self) -> str:
    """Digest of class names and splits: 32 hex digits, independent of any path.

    It differs if a pixel, a label, a class name, the order of the images or the
    division into splits does.
    """
    splits = (self.train, self.validation, self.test)
    # The header delimits what follows, so that no two data sets give the same bytes.
    header = {
        'class_names': self.class_names,
        'images': [(split.images.dtype.str, split.images.shape) for split in splits],
    }
    digest = hashlib.blake2b(json.dumps(header).encode(), digest_size=16)
    for split in splits:
      digest.update(np.ascontiguousarray(split.images))
      digest.update(np.ascontiguousarray(split.class_ids, '<i4'))
    return digest.hexdigest()


def from_arrays(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    class_names: Sequence[str] | None = None,
    validation_size: int = 0,
    seed: int = 0,
    augmentation_policy: str = 'none',
) -> Dataset:
  """Makes a data set from NumPy arrays.

  Args:
    train: images [n, H, W, C] or [n, H, W] uint8 and class ids [n] in 0..M-1.
    test: the same for the test split.
    class_names: M names; the class ids if None.
    validation_size: number of training images to hold out as the validation split,
      stratified by class.
    seed: random seed for that split.
    augmentation_policy: a key of `augmentation.POLICIES`, for training images.
  """
  train, test = _split('train', *train), _split('test', *test)
  num_classes = int(train.class_ids.max()) + 1
  if class_names is None:
    class_names = [str(class_id) for class_id in range(num_classes)]
  if train.images.shape[1:] != test.images.shape[1:]:
    raise UserError(
        f'Training images have shape {train.images.shape[1:]} but test images '
        f'{test.images.shape[1:]}. Resize them to the same shape.')
  missing = np.setdiff1d(np.arange(len(class_names)), train.class_ids)
  if missing.size:
    raise UserError(
        f'The train split has no image of class {missing[0]} '
        f'({class_names[missing[0]]}). Remove the class or add images of it.')
  for name, split in (('train', train), ('test', test)):
    if split.class_ids.max(initial=0) >= len(class_names):
      raise UserError(
          f'The {name} split has class id {split.class_ids.max()}, but there are '
          f'only {len(class_names)} classes. Number classes from 0 and name each.')
  train, validation = _hold_out(train, validation_size, seed)
  return Dataset(
      train, validation, test, tuple(map(str, class_names)), augmentation_policy)


def _split(name, images, class_ids):
  images, class_ids = np.asarray(images), np.asarray(class_ids).reshape(-1)
  if images.ndim == 3:
    images = images[..., np.newaxis]
  if images.dtype != np.uint8 or images.ndim != 4:
    raise UserError(
        f'The {name} images must be uint8 of shape [n, height, width, channels], not '
        f'{images.dtype} of shape {list(images.shape)}.')
  if len(images) != len(class_ids):
    raise UserError(
        f'The {name} split has {len(images)} images but {len(class_ids)} labels. '
        'Pass one label per image.')
  if len(images) == 0:
    raise UserError(f'The {name} split is empty. Pass at least one image.')
  if not np.issubdtype(class_ids.dtype, np.integer) or class_ids.min() < 0:
    raise UserError(f'The {name} labels must be non-negative integers.')
  return Split(images, class_ids.astype(np.int32))


def _hold_out(train, size, seed):
  """Splits off `size` training images, stratified by class."""
  if size == 0:
    return train, Split(train.images[:0], train.class_ids[:0])
  counts = np.bincount(train.class_ids)
  num_classes = int((counts > 0).sum())
  if not num_classes <= size <= len(train) - num_classes:
    raise UserError(
        f'Cannot hold out {size} of {len(train)} training images of {num_classes} '
        'classes: both splits need at least one image per class. Change '
        'validation_size.')
  if counts[counts > 0].min() < 2:
    raise UserError(
        f'Class {int(np.argmax(counts == 1))} has a single training image, which '
        'cannot be in both splits. Set validation_size to 0 or remove the class.')
  from sklearn import model_selection  # Slow to import.
  kept, held_out = (
      np.sort(indices) for indices in model_selection.train_test_split(
          np.arange(len(train)), test_size=size, random_state=seed,
          stratify=train.class_ids))
  return (Split(train.images[kept], train.class_ids[kept]),
          Split(train.images[held_out], train.class_ids[held_out]))
