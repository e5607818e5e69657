"""K-shot, N-way episodes (Section 3.1.1, Algorithm 1) as a tf.data pipeline.

An episode is a pure function of (seed, index): resuming a run means starting at a
later index, and two runs with the same seed see the same episodes. It is one tensor
[N, images per class, H, W, C], and the episode label of an image is its position on
the first axis. `prototypes` divides the images into supports and queries.
"""

import numpy as np
import tensorflow as tf

from dble_tf.data import augmentation
from dble_tf.errors import UserError


def seeds_of_index(seed: int, index: tf.Tensor, count: int) -> tf.Tensor:
  """Returns [count, 2] independent seeds for element `index` of a stream."""
  return tf.random.split(
      tf.stack([tf.cast(seed, tf.int64), tf.cast(index, tf.int64)]), count)


class EpisodeSampler:
  """Draws episodes as indices into a data set, given only its class ids."""

  def __init__(
      self, class_ids: np.ndarray, num_ways: int, images_per_class: int, seed: int):
    """Checks that every class has enough examples for an episode.

    Args:
      class_ids: [n] integers in 0..M-1.
      num_ways: N, the number of classes in an episode.
      images_per_class: number of images of each of them, supports plus queries.
      seed: random seed for all episodes.
    """
    class_ids = np.asarray(class_ids)
    _check(class_ids, num_ways, images_per_class)
    self.num_ways = num_ways
    self.images_per_class = images_per_class
    self._seed = seed
    counts = np.bincount(class_ids)
    # The examples of class c are order[starts[c] : starts[c] + counts[c]].
    self._order = tf.constant(np.argsort(class_ids, kind='stable'), tf.int32)
    self._starts = tf.constant(np.cumsum(counts) - counts, tf.int32)
    self._counts = tf.constant(counts, tf.int32)
    self._largest_count = int(counts.max())

  def seeds(self, index: tf.Tensor) -> tf.Tensor:
    """Returns [3, 2] seeds: for the classes, the examples and the augmentation."""
    return seeds_of_index(self._seed, index, 3)

  def __call__(self, index: tf.Tensor) -> tf.Tensor:
    """Returns the distinct examples of episode `index`: [N, images_per_class] int32."""
    class_seed, example_seed, _ = tf.unstack(self.seeds(index))
    num_classes = self._counts.shape[0]
    classes = tf.random.experimental.stateless_shuffle(
        tf.range(num_classes), class_seed)[:self.num_ways]
    counts = tf.gather(self._counts, classes)[:, tf.newaxis]
    # The top random keys of a class are a sample of its examples without replacement.
    keys = tf.random.stateless_uniform(
        [self.num_ways, self._largest_count], example_seed)
    keys = tf.where(tf.range(self._largest_count) < counts, keys, -1.0)
    places = tf.math.top_k(keys, self.images_per_class).indices
    starts = tf.gather(self._starts, classes)[:, tf.newaxis]
    return tf.gather(self._order, starts + places)


def episode_dataset(
    images: np.ndarray | tf.Tensor,
    sampler: EpisodeSampler,
    episodes_per_step: int,
    start: int = 0,
    augmentation_policy: str = 'none',
) -> tf.data.Dataset:
  """Streams batches of episodes endlessly.

  Args:
    images: [n, H, W, C] uint8, in the order of the sampler's class ids.
    sampler: maps an index to the examples of that episode.
    episodes_per_step: E.
    start: index of the first episode; step s begins at episode s * E.
    augmentation_policy: a key of `augmentation.POLICIES`.

  Returns:
    A `tf.data.Dataset` of [E, N, images per class, H, W, C] uint8 tensors.
  """
  with tf.device('CPU'):
    images = tf.convert_to_tensor(images)

  def make_episode(index):
    examples = sampler(index)
    episode = tf.gather(images, tf.reshape(examples, [-1]))
    episode = augmentation.augment(
        episode, augmentation_policy, sampler.seeds(index)[2])
    return tf.reshape(episode, [*examples.shape, *images.shape[1:]])

  indices = tf.data.Dataset.range(start, np.iinfo(np.int64).max)
  episodes = indices.interleave(
      lambda index: tf.data.Dataset.from_tensors(index).map(make_episode),
      cycle_length=episodes_per_step,
      block_length=1,
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True)
  return episodes.batch(episodes_per_step, drop_remainder=True).prefetch(
      tf.data.AUTOTUNE)


def _check(class_ids, num_ways, images_per_class):
  if class_ids.size == 0:
    raise UserError('Cannot draw episodes from an empty split.')
  if num_ways < 1 or images_per_class < 1:
    raise UserError(
        f'An episode of {num_ways} classes with {images_per_class} images each is '
        'empty. Raise num_ways, num_shots or num_queries.')
  counts = np.bincount(class_ids)
  if num_ways > counts.size:
    raise UserError(
        f'{num_ways}-way episodes need {num_ways} classes, but the data has '
        f'{counts.size}. Lower num_ways.')
  smallest = int(counts.argmin())
  if counts[smallest] < images_per_class:
    raise UserError(
        f'Class {smallest} has {counts[smallest]} examples, but an episode takes '
        f'{images_per_class} of each of its classes, supports plus queries. Lower '
        'num_shots or num_queries, or remove such classes.')
