"""Prototypical learning (Section 3.1): distances, class centers, class likelihoods.

Shapes: D is the representation's size, M the number of classes of the data
set, N the ways of an episode, K its shots, Q its queries in all.
Everything here is float32 under any precision policy.
"""

import tensorflow as tf

# Distances are roots of differences that rounding can turn negative; below this
# the root's gradient is cut to zero instead of growing without bound.
_MIN_SQUARED_DISTANCE = 1e-12


def distances(points: tf.Tensor, centers: tf.Tensor) -> tf.Tensor:
  """L2 distances d(., .) between points and centers, by one matrix product.

  Args:
    points: [..., P, D].
    centers: [..., C, D]; leading dimensions broadcast against those of points.

  Returns:
    [..., P, C] float32.
  """
  return root(squared_distances(points, centers))


def squared_distances(points: tf.Tensor, centers: tf.Tensor) -> tf.Tensor:
  """Squares of `distances`; rounding can make them negative."""
  points = tf.cast(points, tf.float32)
  centers = tf.cast(centers, tf.float32)
  return (
      tf.reduce_sum(tf.square(points), axis=-1, keepdims=True)
      - 2.0 * tf.matmul(points, centers, transpose_b=True)
      + tf.reduce_sum(tf.square(centers), axis=-1)[..., tf.newaxis, :])


def root(squared: tf.Tensor) -> tf.Tensor:
  """Distances from squared ones, with a finite gradient at zero."""
  return tf.sqrt(tf.maximum(squared, _MIN_SQUARED_DISTANCE))


# The three functions that know how an episode is made: which of its images are
# classified, what their labels are, and which centers they are compared with. There
# are two kinds. With `num_shots` = K, the first K images of a class are its supports
# and the rest queries, as in the paper. With `num_shots` = None episodes are
# leave-one-out: every image is a query, and a support for all others.


def episode_labels(
    num_ways: int, num_images: int, num_shots: int | None
) -> tf.Tensor:
  """The labels 0..N-1 of an episode's Q queries: [Q] int32.

  Args:
    num_ways: N.
    num_images: images a class.
    num_shots: K, or None for leave-one-out.
  """
  return tf.repeat(tf.range(num_ways), num_images - (num_shots or 0))


def episode_queries(h: tf.Tensor, num_shots: int | None) -> tf.Tensor:
  """The representations that an episode classifies.

  Args:
    h: [E, N, images a class, D].
    num_shots: K, or None for leave-one-out.

  Returns:
    [E, Q, D], in the order of `episode_labels`.
  """
  queries = h[:, :, num_shots or 0:]
  _, num_ways, num_queries, dim = queries.shape
  return tf.reshape(queries, [-1, num_ways * num_queries, dim])


def episode_distances(
    points: tf.Tensor, h: tf.Tensor, num_shots: int | None
) -> tf.Tensor:
  """Distances of points to the centers of their episode (Eq. 2).

  Args:
    points: [E, Q, D], the queries or samples around them.
    h: [E, N, images a class, D].
    num_shots: K, or None for leave-one-out.

  Returns:
    [E, Q, N] float32.
  """
  h = tf.cast(h, tf.float32)
  centers = tf.reduce_mean(h[:, :, :num_shots], axis=2)
  to_centers = distances(points, centers)
  if num_shots is not None:
    return to_centers
  # A query must not be part of the center it is compared with: its own class's
  # center is the mean of the others, (m c - h) / (m - 1) of m images.
  _, num_ways, m, dim = h.shape
  own_centers = (m * centers[:, :, tf.newaxis] - h) / (m - 1)
  offsets = tf.cast(points, tf.float32) - tf.reshape(
      own_centers, [-1, num_ways * m, dim])
  to_own = root(tf.reduce_sum(tf.square(offsets), axis=-1, keepdims=True))
  is_own = tf.one_hot(
      episode_labels(num_ways, m, num_shots), num_ways, on_value=True, off_value=False)
  return tf.where(is_own, to_own, to_centers)


def shaped(distances_to_centers: tf.Tensor, squared_scale: float | None) -> tf.Tensor:
  """The distances [..., C] of Eq. 3: as they are, or squared and scaled.

  Squared distances (Snell et al., 2017) make the softmax linear in the point.
  """
  if squared_scale is None:
    return distances_to_centers
  return squared_scale * tf.square(distances_to_centers)


def at_true_class(values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """Selects [..., Q] of values [..., Q, C] at labels [Q], without a gather."""
  return tf.reduce_sum(tf.one_hot(labels, values.shape[-1]) * values, axis=-1)


def log_likelihoods(distances_to_centers: tf.Tensor) -> tf.Tensor:
  """Log of Eq. 3 (and of Eq. 9, given a sampled z) for every class.

  Args:
    distances_to_centers: [..., C].

  Returns:
    [..., C] log p(class | point), the log-softmax of negative distances.
  """
  return tf.nn.log_softmax(-distances_to_centers, axis=-1)


def true_log_likelihoods(
    distances_to_centers: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
  """Log of Eq. 3 (and of Eq. 9) at the true class.

  Args:
    distances_to_centers: [..., Q, C].
    labels: [Q] integers, the same for every leading index.

  Returns:
    [..., Q].
  """
  return at_true_class(log_likelihoods(distances_to_centers), labels)


def target_log_likelihoods(
    distances_to_centers: tf.Tensor, labels: tf.Tensor, smoothing: float
) -> tf.Tensor:
  """Log of Eq. 3, averaged over the target (1 - smoothing) one-hot + smoothing / C.

  Args:
    distances_to_centers: [..., Q, C].
    labels: [Q] integers, the same for every leading index.
    smoothing: 0 has the true class alone as target, as in the paper.

  Returns:
    [..., Q].
  """
  likelihoods = log_likelihoods(distances_to_centers)
  at_target = at_true_class(likelihoods, labels)
  if not smoothing:
    return at_target
  return ((1.0 - smoothing) * at_target
          + smoothing * tf.reduce_mean(likelihoods, axis=-1))


def predicted_labels(distances_to_centers: tf.Tensor) -> tf.Tensor:
  """Eq. 6: the nearest center, [..., C] -> [...] int32."""
  return tf.argmin(distances_to_centers, axis=-1, output_type=tf.int32)


def class_sums(
    h: tf.Tensor, class_ids: tf.Tensor, num_classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
  """One batch's share of Eq. 5: sums and counts of each class's representations.

  Args:
    h: [B, D].
    class_ids: [B] integers below `num_classes`.
    num_classes: M.

  Returns:
    Sums [M, D] and counts [M], both float32.
  """
  h = tf.cast(h, tf.float32)
  sums = tf.math.unsorted_segment_sum(h, class_ids, num_classes)
  counts = tf.math.unsorted_segment_sum(
      tf.ones_like(h[:, 0]), class_ids, num_classes)
  return sums, counts
