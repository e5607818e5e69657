"""Random crops and flips of raw uint8 images, as a pure function of a seed."""

import tensorflow as tf

from dble_tf.errors import UserError

# For each policy: the zero padding, in pixels, before a random crop back to the
# original size, and whether to flip half of the images horizontally.
POLICIES = {
    'none': (0, False),
    'flip': (0, True),
    'crop_flip': (4, True),
}


def augment(images: tf.Tensor, policy: str, seed: tf.Tensor) -> tf.Tensor:
  """Augments each image independently.

  Args:
    images: [B, H, W, C] of any dtype; with policy 'none', a tensor of any shape.
    policy: a key of `POLICIES`.
    seed: [2] integers.

  Returns:
    Images of the same shape and dtype.
  """
  if policy not in POLICIES:
    raise UserError(
        f'Unknown augmentation policy {policy!r}. Choose one of '
        f'{", ".join(POLICIES)}.')
  padding, flip = POLICIES[policy]
  if not padding and not flip:
    return images
  height, width = images.shape[1:3]
  batch = tf.shape(images)[0]
  crop_seed, flip_seed = tf.unstack(tf.random.split(seed, 2))
  rows, columns = tf.range(height)[tf.newaxis], tf.range(width)[tf.newaxis]
  if padding:
    images = tf.pad(
        images, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    offsets = tf.random.stateless_uniform(
        [2, batch, 1], crop_seed, maxval=2 * padding + 1, dtype=tf.int32)
    rows, columns = rows + offsets[0], columns + offsets[1]
    images = tf.gather(images, rows, axis=1, batch_dims=1)
  if flip:
    flipped = tf.random.stateless_uniform([batch, 1], flip_seed) < 0.5
    columns = tf.where(flipped, tf.reverse(columns, [1]), columns)
  return tf.gather(images, columns, axis=2, batch_dims=1)
