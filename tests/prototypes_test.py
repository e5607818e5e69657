import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.spatial import distance

from dble_tf import prototypes


def test_distances_are_those_of_a_3_4_5_triangle():
  points = tf.constant([[0.0, 0.0], [3.0, 4.0]])
  centers = tf.constant([[3.0, 0.0], [0.0, 4.0], [6.0, 8.0]])
  np.testing.assert_allclose(
      prototypes.distances(points, centers), [[3, 4, 10], [4, 3, 5]], rtol=1e-6)


def test_distances_agree_with_scipy_in_every_episode():
  rng = np.random.default_rng(0)
  points = rng.normal(size=[3, 7, 512]).astype(np.float32)
  centers = rng.normal(size=[3, 5, 512]).astype(np.float32)
  expected = [distance.cdist(p, c) for p, c in zip(points, centers)]
  np.testing.assert_allclose(
      prototypes.distances(points, centers), expected, rtol=1e-4)


def test_centers_broadcast_over_samples():
  rng = np.random.default_rng(1)
  points = rng.normal(size=[4, 6, 8]).astype(np.float32)
  centers = rng.normal(size=[3, 8]).astype(np.float32)
  expected = [distance.cdist(p, centers) for p in points]
  np.testing.assert_allclose(
      prototypes.distances(points, centers), expected, rtol=1e-4)


def test_gradient_is_finite_where_a_point_lies_on_a_center():
  points = tf.Variable([[1.0, 2.0], [5.0, 2.0]])
  with tf.GradientTape() as tape:
    total = tf.reduce_sum(prototypes.distances(points, [[1.0, 2.0]]))
  np.testing.assert_allclose(tape.gradient(total, points), [[0, 0], [1, 0]], atol=1e-6)


@pytest.mark.parametrize('dtype', [tf.bfloat16, tf.float16, tf.float64])
def test_distances_are_float32_under_any_policy(dtype):
  points = tf.cast([[3.0, 4.0]], dtype)
  result = prototypes.distances(points, tf.cast([[0.0, 0.0]], dtype))
  assert result.dtype == tf.float32
  np.testing.assert_allclose(result, [[5]])


def test_the_first_k_images_of_a_class_make_its_center_and_the_rest_are_queries():
  # Two episodes of two classes, each with two supports and two queries.
  h = tf.reshape(tf.range(2 * 2 * 4 * 1.0), [2, 2, 4, 1])
  queries = prototypes.episode_queries(h, num_shots=2)
  np.testing.assert_array_equal(
      queries[..., 0], [[2, 3, 6, 7], [10, 11, 14, 15]])
  np.testing.assert_array_equal(prototypes.episode_labels(2, 4, 2), [0, 0, 1, 1])
  # The centers are 0.5 and 4.5 in the first episode, 8.5 and 12.5 in the second.
  np.testing.assert_allclose(
      prototypes.episode_distances(queries, h, num_shots=2),
      [[[1.5, 2.5], [2.5, 1.5], [5.5, 1.5], [6.5, 2.5]]] * 2, rtol=1e-4)


def test_episode_centers_are_means_over_each_dimension():
  # Supports (1, 0), (3, 2) and (0, 0), (0, -4): centers (2, 1) and (0, -2).
  h = tf.constant([[[[1.0, 0.0], [3.0, 2.0]], [[0.0, 0.0], [0.0, -4.0]]]])
  points = tf.constant([[[2.0, 4.0], [0.0, 1.0]]])
  np.testing.assert_allclose(
      prototypes.episode_distances(points, h, num_shots=2),
      [[[3, 40**0.5], [2, 3]]], rtol=1e-5)


def test_leave_one_out_compares_each_image_with_the_means_of_all_others():
  rng = np.random.default_rng(5)
  h = rng.normal(size=[2, 3, 4, 6]).astype(np.float32)
  z = h + rng.normal(size=h.shape).astype(np.float32)
  points = prototypes.episode_queries(tf.constant(z), num_shots=None)
  np.testing.assert_array_equal(points, z.reshape(2, 12, 6))
  labels = prototypes.episode_labels(3, 4, num_shots=None)
  np.testing.assert_array_equal(labels, np.repeat(np.arange(3), 4))
  result = prototypes.episode_distances(points, tf.constant(h), num_shots=None)
  assert result.shape == [2, 12, 3]
  for episode, way, place, other in np.ndindex(2, 3, 4, 3):
    others = np.delete(h[episode, way], place, 0) if other == way else h[episode, other]
    expected = np.linalg.norm(z[episode, way, place] - others.mean(axis=0))
    np.testing.assert_allclose(
        result[episode, 4 * way + place, other], expected, rtol=1e-4)


def test_leaving_oneself_out_stretches_the_distance_to_the_own_center():
  # Of m images the center without oneself is m / (m - 1) times as far.
  rng = np.random.default_rng(6)
  h = tf.constant(rng.normal(size=[1, 2, 5, 3]), tf.float32)
  queries = prototypes.episode_queries(h, None)
  with_itself = prototypes.distances(queries, tf.reduce_mean(h, axis=2))
  result = prototypes.episode_distances(queries, h, None)
  np.testing.assert_allclose(
      result[0, :5, 0], 5 / 4 * with_itself[0, :5, 0], rtol=1e-4)
  np.testing.assert_allclose(result[0, :5, 1], with_itself[0, :5, 1], rtol=1e-6)


def test_leave_one_out_has_the_gradient_of_the_explicit_computation():
  rng = np.random.default_rng(7)
  h = tf.Variable(rng.normal(size=[1, 2, 3, 4]), dtype=tf.float32)

  def explicit():
    rows = []
    for way, place in np.ndindex(2, 3):
      centers = []
      for other in range(2):
        kept = [h[0, other, i] for i in range(3) if (other, i) != (way, place)]
        centers.append(tf.add_n(kept) / len(kept))
      rows.append(tf.norm(h[0, way, place] - tf.stack(centers), axis=-1))
    return tf.stack(rows)[tf.newaxis]

  weights = tf.constant(rng.normal(size=[1, 6, 2]), tf.float32)
  gradients = []
  for compute in (explicit, lambda: prototypes.episode_distances(
      prototypes.episode_queries(h, None), h, None)):
    with tf.GradientTape() as tape:
      total = tf.reduce_sum(weights * compute())
    gradients.append(tape.gradient(total, h))
  np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)


def test_likelihoods_are_a_softmax_over_negative_distances():
  # e^0 / (e^0 + e^-ln 2 + e^-ln 4) = 1 / 1.75
  likelihoods = tf.exp(prototypes.log_likelihoods(
      tf.constant([[0.0, np.log(2.0), np.log(4.0)]], tf.float32)))
  np.testing.assert_allclose(
      likelihoods, [[4 / 7, 2 / 7, 1 / 7]], rtol=1e-6)


def test_the_likelihood_of_the_true_class_is_taken_for_each_query():
  d = np.log([[[1.0, 3.0], [4.0, 1.0]], [[1.0, 1.0], [1.0, 9.0]]])
  likelihoods = tf.exp(prototypes.true_log_likelihoods(
      tf.constant(d, tf.float32), tf.constant([0, 1])))
  np.testing.assert_allclose(likelihoods, [[0.75, 0.8], [0.5, 0.1]], rtol=1e-5)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_targets_have_the_cross_entropy_of_keras(smoothing):
  distances = tf.random.stateless_uniform([2, 3, 4], [0, 1], 0.0, 5.0)
  labels = [2, 0, 3]
  expected = -keras.losses.CategoricalCrossentropy(
      from_logits=True, label_smoothing=smoothing, reduction=None)(
          tf.broadcast_to(tf.one_hot(labels, 4), [2, 3, 4]), -distances)
  np.testing.assert_allclose(
      prototypes.target_log_likelihoods(distances, labels, smoothing), expected,
      rtol=1e-5)


def test_distances_of_the_softmax_can_be_squared_and_scaled():
  d = tf.constant([[1.0, 2.0], [3.0, 0.5]])
  assert prototypes.shaped(d, None) is d
  np.testing.assert_allclose(
      prototypes.shaped(d, 0.5), [[0.5, 2.0], [4.5, 0.125]], rtol=1e-6)


def test_squared_distances_make_the_softmax_linear_in_the_point():
  # -s |h - a|^2 + s |h - b|^2 = 2 s h.(a - b) - s (|a|^2 - |b|^2).
  rng = np.random.default_rng(8)
  h, centers = (rng.normal(size=[n, 4]).astype(np.float32) for n in (6, 2))
  log_likelihoods = prototypes.log_likelihoods(
      prototypes.shaped(prototypes.distances(h, centers), 0.3)).numpy()
  a, b = centers
  np.testing.assert_allclose(
      log_likelihoods[:, 0] - log_likelihoods[:, 1],
      0.3 * (2 * h @ (a - b) - a @ a + b @ b), rtol=1e-3, atol=1e-4)


def test_values_are_selected_at_the_true_class():
  values = tf.reshape(tf.range(12.0), [2, 2, 3])
  np.testing.assert_array_equal(
      prototypes.at_true_class(values, tf.constant([2, 0])), [[2, 3], [8, 9]])


def test_likelihoods_of_far_points_do_not_overflow():
  log_likelihoods = prototypes.log_likelihoods(tf.constant([[1e4, 1e4 + 1]]))
  np.testing.assert_allclose(
      tf.exp(log_likelihoods), [[0.731059, 0.268941]], rtol=1e-5)


def test_the_label_is_the_nearest_center():
  labels = prototypes.predicted_labels(tf.constant([[3.0, 1.0, 2.0], [0.5, 1.0, 9.0]]))
  np.testing.assert_array_equal(labels, [1, 0])


def test_class_sums_of_batches_add_up_to_the_class_means():
  rng = np.random.default_rng(2)
  h = rng.normal(size=[50, 3]).astype(np.float32)
  class_ids = rng.integers(4, size=50)
  batches = [prototypes.class_sums(h[i:i + 7], class_ids[i:i + 7], 4)
             for i in range(0, 50, 7)]
  sums, counts = (sum(parts) for parts in zip(*batches))
  for class_id in range(4):
    np.testing.assert_allclose(
        sums[class_id] / counts[class_id], h[class_ids == class_id].mean(axis=0),
        rtol=1e-4, atol=1e-6)
