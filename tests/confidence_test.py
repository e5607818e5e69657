"""The arithmetic of Section 4, and the confidence model."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy import stats
from scipy.spatial import distance

from dble_tf import confidence
from dble_tf.confidence import ConfidenceModel
from dble_tf.errors import UserError
from dble_tf.model import DBLE

H = np.array([[0.2, -0.1], [1.5, 0.5], [-2.0, 3.0]], np.float32)
CENTERS = np.array([[0.0, 0.0], [2.0, 0.0]], np.float32)


# Samples and averaged probabilities


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


# The confidence model

KINDS = [
    {'parametrization': parametrization, 'normalize_input': normalize_input}
    for parametrization in confidence.PARAMETRIZATIONS
    for normalize_input in (True, False)]


def some_h(scale=5.0):
  return scale * np.random.default_rng(0).normal(size=[200, 16]).astype(np.float32)


@pytest.mark.parametrize('kind', KINDS)
def test_sigma_starts_small_everywhere(kind):
  sigma = ConfidenceModel(16, initial_sigma=0.05, **kind)(some_h()).numpy()
  assert sigma.shape == (200, 16)
  np.testing.assert_allclose(sigma, 0.05, rtol=0.15)


def test_sigma_is_that_of_a_two_layer_network():
  model = spread(ConfidenceModel(16, hidden_units=8, normalize_input=False))
  layers = model.hidden, model.output_layer
  (kernel, bias), (out_kernel, out_bias) = (layer.get_weights() for layer in layers)
  v = np.maximum(some_h() @ kernel + bias, 0) @ out_kernel + out_bias
  softplus = np.logaddexp(0, v)
  np.testing.assert_allclose(
      model(some_h()), softplus / (1 + softplus / 10), rtol=1e-3, atol=1e-6)


def test_leading_dimensions_are_kept():
  model = spread(ConfidenceModel(16))
  np.testing.assert_allclose(
      model(some_h().reshape(2, 50, 2, 16)),
      model(some_h()).numpy().reshape(2, 50, 2, 16), rtol=1e-5)


def test_dropout_is_between_the_layers_in_training_alone():
  model = spread(ConfidenceModel(16, dropout=0.5))
  first, second = (model(some_h(), training=True).numpy() for _ in range(2))
  assert not np.allclose(first, second)
  np.testing.assert_array_equal(model(some_h()), model(some_h()))


@pytest.mark.parametrize('kind', KINDS)
def test_sigma_is_positive_and_bounded_whatever_the_weights(kind):
  model = ConfidenceModel(16, **kind)
  for factor in (1e3, -1e3):
    model.output_layer.bias.assign(np.full(16, factor))
    for scale in (1.0, 1e10):
      sigma = model(some_h(scale)).numpy()
      assert np.all((sigma >= 0) & (sigma <= confidence.MAX_SIGMA))


def test_sigma_is_nearly_what_its_name_says_where_it_is_small():
  v = np.linspace(-8, -2, 7).astype(np.float32)
  np.testing.assert_allclose(confidence.softplus(v), np.log1p(np.exp(v)), rtol=0.02)
  np.testing.assert_allclose(confidence.log_variance(v), np.exp(v / 2), rtol=0.04)


def test_the_bound_is_the_same_for_both():
  # s / (1 + s / 10): 5 where s is 10.
  np.testing.assert_allclose(
      confidence.softplus(tf.constant([10.0])), 5.0, rtol=1e-4)
  np.testing.assert_allclose(
      confidence.log_variance(tf.constant([2 * np.log(10.0)])), 5.0, rtol=1e-4)


@pytest.mark.parametrize('parametrization', confidence.PARAMETRIZATIONS)
def test_gradients_are_finite_far_out(parametrization):
  v = tf.Variable([-1e30, -1e3, 0.0, 1e3, 1e30])
  to_sigma, _ = confidence.PARAMETRIZATIONS[parametrization]
  with tf.GradientTape() as tape:
    sigma = to_sigma(v)
  assert np.all(np.isfinite(sigma)) and np.all(np.isfinite(tape.gradient(sigma, v)))


def test_weight_decay_is_the_factor_of_a_kernel_in_its_gradient():
  model = ConfidenceModel(4, weight_decay=0.5)
  kernels = [model.hidden.kernel.value, model.output_layer.kernel.value]
  with tf.GradientTape() as tape:
    loss = tf.add_n(model.losses)
  for kernel, gradient in zip(kernels, tape.gradient(loss, kernels)):
    np.testing.assert_allclose(gradient, 0.5 * kernel.numpy(), rtol=1e-5)


def spread(model):
  """Makes the second layer's output depend on its input."""
  kernel = model.output_layer.kernel
  kernel.assign(np.random.default_rng(1).normal(size=kernel.shape))
  return model


@pytest.mark.parametrize('normalize_input', [True, False])
def test_a_normalized_input_has_no_length(normalize_input):
  model = spread(ConfidenceModel(16, normalize_input=normalize_input))
  sigma, longer = (model(some_h(scale)).numpy() for scale in (10.0, 70.0))
  assert np.allclose(sigma, longer, rtol=1e-3) == normalize_input


@pytest.mark.parametrize('kind', KINDS)
def test_it_survives_saving(kind, tmp_path):
  model = spread(ConfidenceModel(16, learns_from='all', **kind))
  whole = keras.Sequential([keras.Input([16]), model])
  whole.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras').layers[0]
  assert loaded.get_config() == model.get_config() and loaded.learns_from == 'all'
  np.testing.assert_allclose(loaded(some_h()), model(some_h()), rtol=1e-5)
  assert loaded.output_layer.kernel.constraint is not None


def test_it_computes_in_float32_under_any_policy():
  keras.config.set_dtype_policy('mixed_float16')
  try:
    model = ConfidenceModel(4)
  finally:
    keras.config.set_dtype_policy('float32')
  # Far beyond float16: the first layer gives 4 e5, the second 2 e11.
  model.hidden.kernel.assign(np.full([4, 512], confidence.MAX_WEIGHT))
  model.hidden.bias.assign(np.full([512], 4e5))
  model.output_layer.kernel.assign(np.full([512, 4], confidence.MAX_WEIGHT))
  sigma = model(np.array([[1, 2, 3, -4]], np.float16)).numpy()
  assert sigma.dtype == np.float32
  np.testing.assert_allclose(sigma, confidence.MAX_SIGMA, rtol=1e-3)


@pytest.mark.parametrize('arguments, message', [
    ({'initial_sigma': 0.0}, 'between 0 and 10'),
    ({'initial_sigma': -1.0}, 'between 0 and 10'),
    ({'initial_sigma': 10.0}, 'between 0 and 10'),
    ({'parametrization': 'exp'}, "'softplus' or 'log_variance', not 'exp'"),
    ({'learns_from': 'some'}, "'errors' or 'all', not 'some'"),
])
def test_an_argument_that_cannot_be_is_refused(arguments, message):
  with pytest.raises(UserError, match=message):
    ConfidenceModel(4, **arguments)


# Learning from errors


def test_masking_errors_equals_gathering_them():
  rng = np.random.default_rng(3)
  log_likelihood = -rng.exponential(size=[2, 9]).astype(np.float32)
  is_error = rng.random([2, 9]) < 0.4
  np.testing.assert_allclose(
      ConfidenceModel(2).loss(log_likelihood, is_error),
      -log_likelihood[is_error].sum() / 18, rtol=1e-6)
  np.testing.assert_allclose(
      ConfidenceModel(2, learns_from='all').loss(log_likelihood, is_error),
      -log_likelihood.mean(), rtol=1e-6)


def test_without_errors_the_loss_and_its_gradient_are_zero():
  log_likelihood = tf.Variable([-1.0, -20.0])
  with tf.GradientTape() as tape:
    loss = ConfidenceModel(2).loss(log_likelihood, tf.constant([False, False]))
  assert float(loss) == 0
  np.testing.assert_array_equal(tape.gradient(loss, log_likelihood), [0, 0])


def make_dble(rate=0.1, **arguments):
  """A DBLE of two grey pixels, which it takes as they are, and two classes."""
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([2, 1, 1]), keras.layers.Rescaling(0.01), keras.layers.Flatten()])
  model = DBLE(encoder, 2, num_shots=1, confidence_model=ConfidenceModel(
      2, **{'dropout': 0.0, 'weight_decay': 0.0, **arguments}))
  model.compile(
      keras.optimizers.SGD(0.0), keras.optimizers.SGD(rate, momentum=0.9))
  return model


def episode(*greys):
  """Support and query of class 0, support and query of class 1."""
  images = np.array(greys, np.float32).reshape(1, 2, 2, 1, 1, 1)
  return np.repeat(images, 2, axis=3)


SEPARATE = episode(0, 0, 250, 250)
SWAPPED = episode(0, 250, 250, 0)  # Each query is at the other class's center.


@pytest.mark.parametrize('learns_from, batch, learns', [
    ('errors', SEPARATE, False), ('errors', SWAPPED, True), ('all', SEPARATE, True)])
def test_phi_learns_from_the_samples_it_is_given(learns_from, batch, learns):
  model = make_dble(learns_from=learns_from)
  before = model.confidence_model.get_weights()
  logs = model.train_on_batch(batch, return_dict=True)
  after = model.confidence_model.get_weights()
  assert logs['error_rate'] == (batch is SWAPPED)
  assert (logs['confidence_loss'] > 0) == learns
  assert any(not np.array_equal(a, b) for a, b in zip(before, after)) == learns


@pytest.mark.parametrize('kind', KINDS)
def test_nothing_drives_phi_to_nan(kind):
  # Rates without reason, of which the last makes momentum overflow, and a weight decay
  # that multiplies weights by -89 a step.
  for rate, decay in ((1e6, 0.0), (100.0, 0.9), (3e38, 0.9)):
    model = make_dble(rate, weight_decay=decay, **kind)
    for _ in range(30):
      model.train_on_batch(SWAPPED)
    for weight in model.confidence_model.get_weights():
      assert np.all(np.isfinite(weight))
    sigma = model.confidence_model(np.ones([1, 2])).numpy()
    assert np.all((sigma >= 0) & (sigma <= confidence.MAX_SIGMA))


def test_non_finite_centers_leave_phi_alone():
  model = make_dble()
  before = model.confidence_model.get_weights()
  model.train_on_batch(episode(np.nan, 100, np.inf, 1e32))
  for old, new in zip(before, model.confidence_model.get_weights()):
    np.testing.assert_array_equal(old, new)


def test_non_finite_queries_leave_phi_finite():
  model = make_dble()
  for grey in (np.nan, np.inf, -np.inf, 1e30):
    model.train_on_batch(episode(0, 250, 250, grey))
    for weight in model.confidence_model.get_weights():
      assert np.all(np.isfinite(weight))
