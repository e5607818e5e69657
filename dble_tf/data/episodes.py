"""K-shot, N-way episodes (Section 3.1.1, Algorithm 1) as a tf.data pipeline.

An episode is a pure function of (seed, index): starting at another index resumes
a run, and two runs with one seed see the same episodes. It is one tensor
[N, images a class, H, W, C], and an image's episode label is its place on the first
axis. Which images are supports and which are queries is for `prototypes` to say.
"""

import numpy as np
import tensorflow as tf

from dble_tf.data import augmentation
from dble_tf.errors import UserError


def seeds_of_index(seed: int, index: tf.Tensor, count: int) -> tf.Tensor:
  """The seeds that belong to one place of a stream: [count, 2]."""
  return tf.random.split(
      tf.stack([tf.cast(seed, tf.int64), tf.cast(index, tf.int64)]), count)


class EpisodeSampler:
  """Draws episodes as indices into the data set; needs only its labels."""

  def __init__(
      self, class_ids: np.ndarray, num_ways: int, images_per_class: int, seed: int):
    """Checks that every class can fill an episode.

    Args:
      class_ids: [n] integers in 0..M-1.
      num_ways: N, the classes of an episode.
      images_per_class: of each of them, supports and queries together.
      seed: of all episodes.
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
    """The episode's own seeds: [3, 2], for classes, examples and augmentation."""
    return seeds_of_index(self._seed, index, 3)

  def __call__(self, index: tf.Tensor) -> tf.Tensor:
    """The examples of episode `index`: [N, images_per_class] int32, no example twice."""
    class_seed, example_seed, _ = tf.unstack(self.seeds(index))
    num_classes = self._counts.shape[0]
    classes = tf.random.experimental.stateless_shuffle(
        tf.range(num_classes), class_seed)[:self.num_ways]
    counts = tf.gather(self._counts, classes)[:, tf.newaxis]
    # A random order of each class's examples: the largest of random keys.
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
  """An endless stream of batches of episodes.

  Args:
    images: [n, H, W, C] uint8, the data set whose labels the sampler has.
    sampler: index -> the examples of that episode.
    episodes_per_step: E.
    start: the first episode's index; step s begins at s * E.
    augmentation_policy: a key of `augmentation.POLICIES`.

  Returns:
    A data set of [E, N, images a class, H, W, C] uint8 tensors.
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
    raise UserError('There is no example to make episodes from: the split is empty.')
  counts = np.bincount(class_ids)
  if num_ways > counts.size:
    raise UserError(
        f'Episodes of {num_ways} ways need as many classes; the data has '
        f'{counts.size}. Lower num_ways.')
  small = int(counts.argmin())
  if counts[small] < images_per_class:
    raise UserError(
        f'Class {small} has {counts[small]} examples; an episode takes '
        f'{images_per_class} of each of its classes, supports and queries together. '
        'Lower num_shots or num_queries, or leave out such classes.')
