"""The `Dataset` class: four splits of raw uint8 images and their class ids."""

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
  """Splits with their class names and augmentation; no image is in two of them.

  Attributes:
    train: images that theta, phi and the class centers are fitted on.
    validation: held-out training images that everything else is fitted and chosen on,
      but for thresholds; may be empty.
    threshold: held-out training images that thresholds are chosen on, and nothing
      else; may be empty.
    test: images used for evaluation only.
    class_names: one name per class id.
    augmentation_policy: a key of `augmentation.POLICIES`, for training images.
  """

  train: Split
  validation: Split
  threshold: Split
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
    splits = (self.train, self.validation, self.threshold, self.test)
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
    *,
    threshold_size: int = 0,
    train_size: int | None = None,
) -> Dataset:
  """Makes a data set from NumPy arrays.

  The held-out images depend on `validation_size`, `threshold_size` and `seed`, not on
  `train_size`; a larger `train_size` adds images to those of a smaller one. Every
  part has an image of each class.

  Args:
    train: images [n, H, W, C] or [n, H, W] uint8 and class ids [n] in 0..M-1.
    test: the same for the test split.
    class_names: M names; the class ids if None.
    validation_size: number of training images to hold out, stratified by class.
    seed: random seed for the division into splits.
    augmentation_policy: a key of `augmentation.POLICIES`, for training images.
    threshold_size: number of the held-out images that are the threshold split,
      stratified by class; the others are the validation split.
    train_size: number of the remaining training images to keep, stratified by class;
      all if None.
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
  train, held_out = _hold_out(
      train, validation_size, seed, 'training', 'validation_size')
  validation, threshold = _hold_out(
      held_out, threshold_size, seed, 'validation',
      'threshold_size, which is a part of validation_size')
  return Dataset(
      _reduced(train, train_size, seed), validation, threshold, test,
      tuple(map(str, class_names)), augmentation_policy)


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


def _hold_out(split, size, seed, kind, setting):
  """Divides images into the remaining and the `size` held-out ones, class by class."""
  if size == 0:
    return split, _part(split, slice(0))
  counts = np.bincount(split.class_ids)
  num_classes = int((counts > 0).sum())
  if not num_classes <= size <= len(split) - num_classes:
    raise UserError(
        f'Cannot hold out {size} of {len(split)} {kind} images of {num_classes} '
        'classes: both splits need at least one image per class. Change '
        f'{setting}.')
  rare = np.flatnonzero(counts == 1)
  if not rare.size:
    from sklearn import model_selection  # Slow to import.
    parts = [_part(split, np.sort(indices))
             for indices in model_selection.train_test_split(
                 np.arange(len(split)), test_size=size, random_state=seed,
                 stratify=split.class_ids)]
    rare = np.setdiff1d(
        split.class_ids, np.intersect1d(*(part.class_ids for part in parts)))
  if rare.size:
    raise UserError(
        f'Class {rare[0]} has {counts[rare[0]]} of {len(split)} {kind} images, too few '
        f'for both splits to have one if {size} are held out. Change {setting}, or '
        'remove the class.')
  return parts


def _reduced(train, size, seed):
  """Keeps `size` images, of each class in proportion and at least one."""
  if size is None:
    return train
  classes = np.unique(train.class_ids)
  if not len(classes) <= size <= len(train):
    raise UserError(
        f'Cannot train on {size} of the {len(train)} images of {len(classes)} classes '
        'that are left for training: it takes at least one image per class, and at '
        'most all of them. Change train_size.')
  # Shuffles each class and spreads it evenly over 0..1; what comes first is kept.
  rng, places = np.random.default_rng(seed), np.empty(len(train))
  for class_id in classes:
    members = rng.permutation(np.flatnonzero(train.class_ids == class_id))
    places[members] = np.arange(len(members)) / len(members)
  return _part(train, np.sort(np.argsort(places, kind='stable')[:size]))


def _part(split, indices):
  return Split(split.images[indices], split.class_ids[indices])
