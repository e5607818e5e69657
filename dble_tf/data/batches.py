"""Shuffled batches of training images as a tf.data pipeline, for ordinary training.

A batch, like an episode, is a pure function of (seed, index): resuming a run means
starting at a later index.
"""

import numpy as np
import tensorflow as tf

from dble_tf.data import augmentation
from dble_tf.data import episodes
from dble_tf.errors import UserError


def batch_dataset(
    images: np.ndarray | tf.Tensor,
    class_ids: np.ndarray | tf.Tensor,
    batch_size: int,
    seed: int,
    start: int = 0,
    augmentation_policy: str = 'none',
) -> tf.data.Dataset:
  """Streams batches endlessly, reshuffling the data in every pass.

  Args:
    images: [n, H, W, C] uint8.
    class_ids: [n] integers.
    batch_size: B. The n mod B images left at the end of a pass are dropped.
    seed: random seed for shuffling and augmentation.
    start: index of the first batch.
    augmentation_policy: a key of `augmentation.POLICIES`.

  Returns:
    A `tf.data.Dataset` of ([B, H, W, C] uint8, [B]) tensors.
  """
  if not 1 <= batch_size <= len(images):
    raise UserError(
        f'Cannot draw a batch of {batch_size} images from {len(images)}. Set '
        f'batch_size to at least 1 and at most {len(images)}.')
  batches_per_pass = len(images) // batch_size
  with tf.device('CPU'):
    images = tf.convert_to_tensor(images)
    class_ids = tf.convert_to_tensor(class_ids)

  def pass_over_data(number):
    order_seed, _ = tf.unstack(episodes.seeds_of_index(seed, number, 2))
    order = tf.random.experimental.stateless_shuffle(
        tf.range(len(images)), order_seed)
    order = order[:batches_per_pass * batch_size]
    first = number * batches_per_pass
    return tf.data.Dataset.from_tensor_slices((
        tf.reshape(order, [batches_per_pass, batch_size]),
        tf.range(first, first + batches_per_pass)))

  def make_batch(examples, index):
    _, augmentation_seed = tf.unstack(episodes.seeds_of_index(seed, index, 2))
    batch = augmentation.augment(
        tf.gather(images, examples), augmentation_policy, augmentation_seed)
    return batch, tf.gather(class_ids, examples)

  first_pass, skipped = divmod(start, batches_per_pass)
  passes = tf.data.Dataset.range(first_pass, np.iinfo(np.int64).max)
  return passes.flat_map(pass_over_data).skip(skipped).map(
      make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True,
  ).prefetch(tf.data.AUTOTUNE)
