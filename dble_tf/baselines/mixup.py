"""Mixup (Zhang et al., 2018; for calibration, Thulasidasan et al., 2019): `Vanilla`
with other batches."""

import tensorflow as tf

from dble_tf.data import episodes


def mixup_dataset(
    batches: tf.data.Dataset,
    num_classes: int,
    alpha: float,
    seed: int,
    start: int = 0,
) -> tf.data.Dataset:
  """Mixes the images of each batch.

  Args:
    batches: ([B, H, W, C] uint8, [B] class ids) in random order.
    num_classes: M.
    alpha: of the Beta(alpha, alpha) distribution of an image's share.
    seed: of the shares.
    start: the first batch's index.

  Returns:
    A data set of ([B, H, W, C] uint8, [B, M]) tensors.
  """

  def mix_batch(index, batch):
    *_, share_seed = tf.unstack(episodes.seeds_of_index(seed, index, 3))
    return mix(*batch, num_classes, shares(len(batch[1]), alpha, share_seed))

  return tf.data.Dataset.zip(tf.data.Dataset.counter(start), batches).map(
      mix_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True,
  ).prefetch(tf.data.AUTOTUNE)


def shares(count: int, alpha: float, seed: tf.Tensor) -> tf.Tensor:
  """Draws each image's own share: [count] from Beta(alpha, alpha)."""
  import tensorflow_probability as tfp

  return tfp.distributions.Beta(alpha, alpha).sample(
      count, seed=tf.cast(seed, tf.int32))


def mix(
    images: tf.Tensor, class_ids: tf.Tensor, num_classes: int, own_shares: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Mixes each image and its target with those of the next image in the batch.

  Args:
    images: [B, H, W, C] uint8.
    class_ids: [B].
    num_classes: M.
    own_shares: [B] in [0, 1].

  Returns:
    Images [B, H, W, C], rounded to uint8, and targets [B, M] float32.
  """

  def mixed(values):
    share = tf.reshape(own_shares, [-1] + [1] * (len(values.shape) - 1))
    return share * values + (1.0 - share) * tf.roll(values, -1, axis=0)

  mixed_images = tf.round(mixed(tf.cast(images, tf.float32)))
  return tf.cast(mixed_images, images.dtype), mixed(tf.one_hot(class_ids, num_classes))
