"""The arithmetic of Section 4."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy import stats
from scipy.spatial import distance

from dble_tf import confidence

H = np.array([[0.2, -0.1], [1.5, 0.5], [-2.0, 3.0]], np.float32)
CENTERS = np.array([[0.0, 0.0], [2.0, 0.0]], np.float32)


def test_samples_have_mean_h_and_deviation_sigma():
  noise = confidence.standard_noise([20_000, 2], [1, 2])
  z = confidence.sample_representations(
      np.array([3.0, -1.0]), np.array([0.5, 2.0]), noise).numpy()
  for column, expected in enumerate([stats.norm(3, 0.5), stats.norm(-1, 2)]):
    assert stats.kstest(z[:, column], expected.cdf).pvalue > 1e-3


def test_a_sample_is_h_plus_sigma_times_noise():
  z = confidence.sample_representations(
      tf.constant([[1.0, 2.0], [0.0, 0.0]]), tf.constant([[0.5, 0.0], [1.0, 3.0]]),
      tf.constant([[2.0, 9.0], [-1.0, 1.0]]))
  np.testing.assert_allclose(z, [[2, 2], [-1, 3]])


def test_samples_are_differentiable_in_sigma():
  sigma = tf.Variable(np.full_like(H, 0.5))
  noise = confidence.standard_noise([3, 2], [1, 2])
  with tf.GradientTape() as tape:
    total = tf.reduce_sum(confidence.sample_representations(H, sigma, noise))
  np.testing.assert_allclose(tape.gradient(total, sigma), noise, rtol=1e-5)


def test_a_temperature_divides_distances():
  noise = confidence.standard_noise([5, 2], [0, 0])
  result = confidence.averaged_probabilities(
      H, np.zeros_like(H), CENTERS, noise, temperature=2.5)
  expected = special.softmax(-distance.cdist(H, CENTERS) / 2.5, axis=1)
  np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_zero_sigma_gives_the_prototypical_softmax():
  noise = confidence.standard_noise([5, 2], [0, 0])
  result = confidence.averaged_probabilities(H, np.zeros_like(H), CENTERS, noise)
  expected = special.softmax(-distance.cdist(H, CENTERS), axis=1)
  np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_probabilities_average_the_softmax_over_samples():
  # Worked by hand on a line: h = 0, sigma = 1, noise -1 and 1, centers -1 and 2.
  # z = -1: distances 0 and 3; z = 1: distances 2 and 1.
  expected = (1 / (1 + np.exp(-3)) + np.exp(-2) / (np.exp(-2) + np.exp(-1))) / 2
  result = confidence.averaged_probabilities(
      tf.constant([[0.0]]), tf.constant([[1.0]]), tf.constant([[-1.0], [2.0]]),
      tf.constant([[-1.0], [1.0]]))
  np.testing.assert_allclose(result, [[expected, 1 - expected]], rtol=1e-5)


def test_sampled_distances_are_those_of_the_samples():
  rng = np.random.default_rng(3)
  h, centers, noise = (rng.normal(size=[n, 16]).astype(np.float32) for n in (7, 5, 9))
  sigma = rng.uniform(0.1, 2, size=[7, 16]).astype(np.float32)
  result = confidence.sampled_distances(h, sigma, centers, noise)
  assert result.shape == [7, 9, 5]
  for row in range(7):
    np.testing.assert_allclose(
        result[row], distance.cdist(h[row] + sigma[row] * noise, centers), rtol=1e-4)


def test_distances_can_be_had_for_any_factor_on_sigma():
  rng = np.random.default_rng(5)
  h, centers, noise = (rng.normal(size=[n, 16]).astype(np.float32) for n in (7, 5, 9))
  sigma = rng.uniform(0.1, 2, size=[7, 16]).astype(np.float32)
  terms = confidence.distance_terms(h, sigma, centers, noise)
  for factor in (0.0, 0.3, 4.0):
    result = confidence.scaled_distances(terms, factor)
    for row in range(7):
      np.testing.assert_allclose(
          result[row], distance.cdist(h[row] + factor * sigma[row] * noise, centers),
          rtol=1e-4)


@pytest.mark.parametrize('num_samples', [35, 37])
def test_many_samples_and_classes_are_averaged_in_chunks_without_loss(num_samples):
  rng = np.random.default_rng(4)
  h, centers, noise = (
      rng.normal(size=[n, 6]).astype(np.float32) for n in (4, 700, num_samples))
  sigma = np.full([4, 6], 0.5, np.float32)
  average = tf.function(confidence.averaged_probabilities)
  expected = np.mean(
      [special.softmax(-distance.cdist(h + sigma * e, centers), axis=1) for e in noise],
      axis=0)
  np.testing.assert_allclose(average(h, sigma, centers, noise), expected, rtol=1e-4)
  # No tensor holds all distances of the images.
  graph = average.get_concrete_function(h, sigma, centers, noise).graph
  sizes = [output.shape.num_elements() for function in graph._functions.values()
           for node in function.graph.get_operations() for output in node.outputs
           if output.shape.is_fully_defined()]
  assert 4 * 5 * 700 in sizes  # Seven chunks of five samples.
  assert max(sizes) < 4 * num_samples * 700


def test_more_noise_lowers_the_expected_confidence():
  noise = confidence.standard_noise([2000, 2], [0, 0])
  on_a_center = np.zeros([1, 2], np.float32)
  confidences = [
      float(confidence.averaged_probabilities(
          on_a_center, np.full([1, 2], sigma, np.float32), CENTERS, noise)[0, 0])
      for sigma in (0.0, 0.5, 1.0, 2.0, 4.0)]
  assert confidences == sorted(confidences, reverse=True)
  assert confidences[0] - confidences[-1] > 0.1


def test_an_image_keeps_its_probabilities_in_any_batch():
  noise = confidence.standard_noise([20, 2], [0, 0])
  sigma = np.full_like(H, 0.7)
  together = confidence.averaged_probabilities(H, sigma, CENTERS, noise)
  for row in range(len(H)):
    alone = confidence.averaged_probabilities(
        H[row:row + 1], sigma[row:row + 1], CENTERS, noise)
    np.testing.assert_allclose(alone[0], together[row], rtol=1e-6)


def test_noise_is_standard_normal_and_belongs_to_its_seed():
  noise = confidence.standard_noise([20, 512], [4, 0]).numpy()
  assert stats.kstest(noise.ravel(), stats.norm.cdf).pvalue > 1e-3
  np.testing.assert_array_equal(noise, confidence.standard_noise([20, 512], [4, 0]))
  assert not np.array_equal(noise, confidence.standard_noise([20, 512], [4, 1]))


def test_noise_comes_in_equal_parts_also_where_the_part_is_known_late():
  whole = confidence.standard_noise([6, 4], [3, 1])
  draw = lambda part: confidence.standard_noise([2, 4], [3, 1], part, num_parts=3)
  for draw_part in (draw, tf.function(draw, jit_compile=True)):
    parts = [draw_part(tf.constant(part)) for part in range(3)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-6)


def test_noise_is_the_same_under_xla():
  draw = lambda seed: confidence.standard_noise([20, 512], seed)
  seed = tf.constant([4, 0])  # An argument, or XLA would fold the noise away.
  np.testing.assert_allclose(
      tf.function(draw, jit_compile=True)(seed), draw(seed), rtol=1e-4, atol=1e-6)
