"""G_phi: its sigma, the scale of the space, its loss, and that nothing breaks it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import confidence_model
from dble_tf.confidence_model import bounded_softplus
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.errors import UserError
from dble_tf.model import DBLE


def some_h(length=5.0):
  return length * np.random.default_rng(0).normal(size=[200, 16]).astype(np.float32)


def spread(model):
  """Makes the second layer's output depend on its input."""
  kernel = model.output_layer.kernel
  kernel.assign(np.random.default_rng(1).normal(size=kernel.shape))
  return model


# Sigma


def test_sigma_is_that_of_a_two_layer_network_in_units_of_the_scale():
  model = spread(ConfidenceModel(16, hidden_units=8))
  model.scale.assign(0.3)
  layers = model.hidden, model.output_layer
  (kernel, bias), (out_kernel, out_bias) = (layer.get_weights() for layer in layers)
  h = some_h().astype(np.float64)
  x = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True)
  softplus = np.logaddexp(0, np.maximum(x @ kernel + bias, 0) @ out_kernel + out_bias)
  np.testing.assert_allclose(
      model(some_h()), 0.3 * softplus / (1 + softplus / 10), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('scale', [1.0, 0.02, 30.0])
def test_sigma_starts_at_the_scale_everywhere(scale):
  model = ConfidenceModel(16)
  model.scale.assign(scale)
  sigma = model(some_h()).numpy()
  assert sigma.shape == (200, 16)
  np.testing.assert_allclose(sigma, scale, rtol=0.05)


def test_the_length_and_the_mean_of_an_input_do_not_matter():
  model = spread(ConfidenceModel(16))
  sigma = model(some_h(10.0)).numpy()
  assert sigma.std() > 0.1
  np.testing.assert_allclose(model(some_h(70.0)), sigma, rtol=1e-3)
  np.testing.assert_allclose(model(some_h(10.0) + 20.0), sigma, rtol=1e-3)


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


@pytest.mark.parametrize('scale', [1.0, 0.01])
def test_sigma_is_positive_and_bounded_whatever_the_weights(scale):
  model = ConfidenceModel(16)
  model.scale.assign(scale)
  for bias in (1e3, -1e3):
    model.output_layer.bias.assign(np.full(16, bias))
    for length in (1.0, 1e10):
      sigma = model(some_h(length)).numpy()
      assert np.all((sigma >= 0) & (sigma <= 10 * scale))


def test_a_bent_softplus_is_nearly_one_where_it_is_small():
  v = np.linspace(-8, -2, 7).astype(np.float32)
  np.testing.assert_allclose(bounded_softplus(v), np.log1p(np.exp(v)), rtol=0.02)
  # s / (1 + s / 10): 5 where s is 10, and below 10 everywhere.
  np.testing.assert_allclose(bounded_softplus(tf.constant([10.0])), 5.0, rtol=1e-4)
  np.testing.assert_allclose(bounded_softplus(tf.constant([1e4])), 9.99, rtol=1e-4)


def test_gradients_are_finite_far_out():
  v = tf.Variable([-1e30, -1e3, 0.0, 1e3, 1e30])
  with tf.GradientTape() as tape:
    sigma = bounded_softplus(v)
  assert np.all(np.isfinite(sigma)) and np.all(np.isfinite(tape.gradient(sigma, v)))


def test_weight_decay_is_the_factor_of_a_kernel_in_its_gradient():
  model = ConfidenceModel(4, weight_decay=0.5)
  kernels = [model.hidden.kernel.value, model.output_layer.kernel.value]
  with tf.GradientTape() as tape:
    loss = tf.add_n(model.losses)
  for kernel, gradient in zip(kernels, tape.gradient(loss, kernels)):
    np.testing.assert_allclose(gradient, 0.5 * kernel.numpy(), rtol=1e-5)


def test_it_survives_saving(tmp_path):
  model = spread(ConfidenceModel(16, learns_from='all', hidden_units=9))
  model.scale.assign(0.3)
  whole = keras.Sequential([keras.Input([16]), model])
  whole.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras').layers[0]
  assert loaded.get_config() == model.get_config() and loaded.learns_from == 'all'
  assert float(loaded.scale) == float(model.scale) == pytest.approx(0.3)
  np.testing.assert_allclose(loaded(some_h()), model(some_h()), rtol=1e-5)
  assert loaded.output_layer.kernel.constraint is not None


def test_it_computes_in_float32_under_any_policy():
  keras.config.set_dtype_policy('mixed_float16')
  try:
    model = ConfidenceModel(4)
  finally:
    keras.config.set_dtype_policy('float32')
  # Far beyond float16: the first layer gives 4 e5, the second 2 e11.
  model.hidden.kernel.assign(np.full([4, 512], confidence_model.MAX_WEIGHT))
  model.hidden.bias.assign(np.full([512], 4e5))
  model.output_layer.kernel.assign(np.full([512, 4], confidence_model.MAX_WEIGHT))
  sigma = model(np.array([[1, 2, 3, -4]], np.float16)).numpy()
  assert sigma.dtype == np.float32 and model.scale.dtype == 'float32'
  np.testing.assert_allclose(sigma, 10.0, rtol=1e-3)


def test_learning_from_what_is_not_known_is_refused():
  with pytest.raises(UserError, match="'errors' or 'all', not 'some'"):
    ConfidenceModel(4, learns_from='some')


# The scale of the space


def test_the_scale_is_a_moving_average_of_own_distances_by_the_root_of_the_size():
  model = ConfidenceModel(4)
  assert float(model.scale) == 1.0
  # Mean distances 3 and 5, over sqrt(4).
  model.update_scale(tf.constant([[2.0, 4.0]]))
  assert float(model.scale) == pytest.approx(0.9 * 1.0 + 0.1 * 1.5)
  model.update_scale(tf.constant([[1.0, 2.0], [7.0, 10.0]]))
  assert float(model.scale) == pytest.approx(0.9 * 1.05 + 0.1 * 2.5)


def test_the_scale_comes_to_be_that_of_normal_points_around_their_center():
  # With deviation s in each of D dimensions, the mean distance is nearly s sqrt(D).
  rng = np.random.default_rng(0)
  model = ConfidenceModel(64, hidden_units=2)
  for _ in range(100):
    points = rng.normal(scale=0.3, size=[50, 64])
    model.update_scale(
        tf.constant(np.linalg.norm(points, axis=-1), tf.float32))
  assert float(model.scale) == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize('distance', [np.nan, np.inf])
def test_a_scale_that_is_not_finite_is_not_taken(distance):
  model = ConfidenceModel(4)
  model.update_scale(tf.constant([3.0, distance]))
  assert float(model.scale) == 1.0
  model.update_scale(tf.constant([4.0]))
  assert float(model.scale) == pytest.approx(1.1)


def test_gradient_descent_does_not_move_the_scale():
  model = ConfidenceModel(4)
  assert all(variable is not model.scale for variable in model.trainable_variables)
  assert any(variable is model.scale for variable in model.non_trainable_variables)


# Learning from errors


def test_the_loss_is_the_mean_over_the_errors():
  # The errors' are 3 and 5.
  log_likelihood = tf.constant([[-1.0, -3.0], [-5.0, -8.0]])
  is_error = tf.constant([[False, True], [True, False]])
  assert float(ConfidenceModel(2).loss(log_likelihood, is_error)) == 4.0
  assert float(ConfidenceModel(2, learns_from='all').loss(
      log_likelihood, is_error)) == 4.25
  # One error counts as much among many queries as among few.
  for num_queries in (1, 100):
    is_first = np.arange(num_queries) == 0
    loss = ConfidenceModel(2).loss(
        tf.constant(np.where(is_first, -2.5, -9.0), tf.float32), is_first)
    assert float(loss) == 2.5


def test_masking_errors_equals_gathering_them():
  rng = np.random.default_rng(3)
  log_likelihood = -rng.exponential(size=[2, 9]).astype(np.float32)
  is_error = rng.random([2, 9]) < 0.4
  assert 1 < is_error.sum() < 18
  for learns_from, chosen in (('errors', is_error), ('all', np.full([2, 9], True))):
    values = tf.Variable(log_likelihood)
    with tf.GradientTape() as tape:
      loss = ConfidenceModel(2, learns_from=learns_from).loss(values, is_error)
    np.testing.assert_allclose(loss, -log_likelihood[chosen].mean(), rtol=1e-6)
    np.testing.assert_allclose(
        tape.gradient(loss, values), chosen / -chosen.sum(), rtol=1e-6)


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
  before = [variable.numpy() for variable in model.phi]
  logs = model.train_on_batch(batch, return_dict=True)
  after = [variable.numpy() for variable in model.phi]
  assert logs['error_rate'] == (batch is SWAPPED)
  assert (logs['confidence_loss'] > 0) == learns
  assert any(not np.array_equal(a, b) for a, b in zip(before, after)) == learns


def test_the_scale_follows_right_and_wrong_queries_alike():
  # A query is at its center, or 2.5 off in both dimensions.
  for batch, expected in ((SEPARATE, 0.9), (SWAPPED, 0.9 + 0.1 * 2.5)):
    model = make_dble()
    model.train_on_batch(batch)
    assert float(model.confidence_model.scale) == pytest.approx(expected, rel=1e-5)


# Robustness


def test_weights_are_clipped_and_nan_becomes_zero():
  clipped = confidence_model.Bounded()(
      tf.constant([np.nan, 2e3, -np.inf, 5.0, -999.0]))
  np.testing.assert_array_equal(clipped, [0, 1e3, -1e3, 5, -999])


def test_nothing_drives_phi_to_nan():
  # Rates without reason, of which the last makes momentum overflow, and a weight decay
  # that multiplies weights by -89 a step.
  for rate, decay in ((1e6, 0.0), (100.0, 0.9), (3e38, 0.9)):
    model = make_dble(rate, weight_decay=decay)
    for _ in range(30):
      model.train_on_batch(SWAPPED)
    for weight in model.confidence_model.get_weights():
      assert np.all(np.isfinite(weight))
    sigma = model.confidence_model(np.ones([1, 2])).numpy()
    assert np.all((sigma >= 0) & (sigma <= 10 * model.confidence_model.scale.numpy()))


def test_non_finite_centers_leave_phi_alone():
  model = make_dble()
  before = model.confidence_model.get_weights()
  model.train_on_batch(episode(np.nan, 100, np.inf, 1e32))
  for old, new in zip(before, model.confidence_model.get_weights()):
    np.testing.assert_array_equal(old, new)


def test_non_finite_queries_leave_phi_finite():
  model = make_dble()
  for grey in (np.nan, np.inf, -np.inf, 1e30, 1e20):
    model.train_on_batch(episode(0, 250, 250, grey))
    for weight in model.confidence_model.get_weights():
      assert np.all(np.isfinite(weight))


# Its optimizer


def test_phis_optimizer_is_built_and_scales_losses_where_thetas_does():
  phi = [keras.Variable([1.0])]
  loss_scaling = keras.optimizers.LossScaleOptimizer
  plain = confidence_model.phi_optimizer('sgd', keras.optimizers.SGD(), phi)
  assert plain.built and not isinstance(plain, loss_scaling)
  scaled = confidence_model.phi_optimizer(
      'sgd', loss_scaling(keras.optimizers.SGD()), phi)
  assert scaled.built and isinstance(scaled, loss_scaling)
  own = loss_scaling(keras.optimizers.SGD())
  assert confidence_model.phi_optimizer(
      own, loss_scaling(keras.optimizers.SGD()), phi) is own


def test_one_optimizer_for_both_is_refused():
  optimizer = keras.optimizers.SGD()
  with pytest.raises(UserError, match='an optimizer each'):
    confidence_model.phi_optimizer(optimizer, optimizer, [keras.Variable([1.0])])
