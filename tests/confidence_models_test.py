import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import confidence_models
from dble_tf.errors import UserError

KINDS = [
    {'parametrisation': parametrisation, 'per_dimension': per_dimension,
     'normalize_input': normalize_input}
    for parametrisation in ('softplus', 'log_variance')
    for per_dimension in (True, False) for normalize_input in (True, False)]


def some_h(scale=5.0):
  return scale * np.random.default_rng(0).normal(size=[200, 16]).astype(np.float32)


@pytest.mark.parametrize('kind', KINDS)
def test_sigma_starts_small_everywhere(kind):
  model = confidence_models.confidence_mlp(16, initial_sigma=0.05, **kind)
  sigma = model.predict(some_h(), verbose=0)
  assert sigma.shape == (200, 16)
  np.testing.assert_allclose(sigma, 0.05, rtol=0.15)


@pytest.mark.parametrize('kind', KINDS)
def test_sigma_is_positive_and_bounded_whatever_the_weights(kind):
  model = confidence_models.confidence_mlp(16, **kind)
  for factor in (1e3, -1e3):
    model.layers[-1 if kind['per_dimension'] else -3].bias.assign(
        np.full(16 if kind['per_dimension'] else 1, factor))
    for scale in (1.0, 1e10):
      sigma = model.predict(some_h(scale), verbose=0)
      assert np.all((sigma >= 0) & (sigma <= confidence_models.MAX_SIGMA))


def test_sigma_is_nearly_what_its_name_says_where_it_is_small():
  v = np.linspace(-8, -2, 7).astype(np.float32)
  np.testing.assert_allclose(
      confidence_models.softplus(v), np.log1p(np.exp(v)), rtol=0.02)
  np.testing.assert_allclose(
      confidence_models.log_variance(v), np.exp(v / 2), rtol=0.04)


def test_the_bound_is_the_same_for_both():
  # s / (1 + s / 10): 5 where s is 10.
  np.testing.assert_allclose(confidence_models.softplus(tf.constant([10.0])), 5.0, rtol=1e-4)
  np.testing.assert_allclose(
      confidence_models.log_variance(tf.constant([2 * np.log(10.0)])), 5.0, rtol=1e-4)


@pytest.mark.parametrize('parametrisation', confidence_models.PARAMETRISATIONS)
def test_gradients_are_finite_far_out(parametrisation):
  v = tf.Variable([-1e30, -1e3, 0.0, 1e3, 1e30])
  with tf.GradientTape() as tape:
    sigma = getattr(confidence_models, parametrisation)(v)
  assert np.all(np.isfinite(sigma)) and np.all(np.isfinite(tape.gradient(sigma, v)))


def test_the_confidence_model_has_two_layers_with_dropout_between():
  model = confidence_models.confidence_mlp(4, hidden_units=8, dropout=0.5)
  assert [type(layer).__name__ for layer in model.layers] == [
      'LayerNormalization', 'Dense', 'Dropout', 'Dense']
  assert model.output_shape == (None, 4)


def test_weight_decay_is_the_factor_of_a_kernel_in_its_gradient():
  model = confidence_models.confidence_mlp(4, weight_decay=0.5)
  kernel = model.layers[1].kernel
  with tf.GradientTape() as tape:
    loss = tf.add_n(model.losses)
  np.testing.assert_allclose(
      tape.gradient(loss, kernel.value), 0.5 * kernel.numpy(), rtol=1e-5)


def spread(model):
  """Makes the second layer's output depend on its input."""
  layer = next(one for one in reversed(model.layers) if hasattr(one, 'kernel'))
  layer.kernel.assign(np.random.default_rng(1).normal(size=layer.kernel.shape))
  return model


def test_an_isotropic_sigma_is_the_same_in_all_dimensions_but_not_for_all_images():
  sigma = spread(confidence_models.confidence_mlp(16, per_dimension=False)).predict(
      some_h(), verbose=0)
  np.testing.assert_array_equal(sigma, np.repeat(sigma[:, :1], 16, axis=1))
  assert np.ptp(sigma[:, 0]) > 0.1


@pytest.mark.parametrize('normalize_input', [True, False])
def test_a_normalised_input_has_no_length(normalize_input):
  model = spread(
      confidence_models.confidence_mlp(16, normalize_input=normalize_input))
  sigma, longer = (model.predict(some_h(scale), verbose=0) for scale in (10.0, 70.0))
  assert np.allclose(sigma, longer, rtol=1e-3) == normalize_input


def test_a_constant_sigma_is_the_same_for_all_and_learns_nothing():
  model = confidence_models.constant_sigma(16, 0.3)
  np.testing.assert_allclose(model.predict(some_h(), verbose=0), 0.3, rtol=1e-6)
  assert not model.trainable_variables


@pytest.mark.parametrize('kind', KINDS)
def test_it_survives_saving(kind, tmp_path):
  model = spread(confidence_models.confidence_mlp(16, **kind))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_allclose(
      loaded.predict(some_h(), verbose=0), model.predict(some_h(), verbose=0), rtol=1e-5)
  assert loaded.layers[-1 if kind['per_dimension'] else -3].kernel.constraint is not None


@pytest.mark.parametrize('initial_sigma', [0.0, -1.0, 10.0])
def test_a_sigma_that_cannot_be_is_refused(initial_sigma):
  with pytest.raises(UserError, match='between 0 and 10'):
    confidence_models.confidence_mlp(4, initial_sigma=initial_sigma)


def test_it_computes_in_float32_under_any_policy():
  keras.config.set_dtype_policy('mixed_float16')
  try:
    model = confidence_models.confidence_mlp(4)
  finally:
    keras.config.set_dtype_policy('float32')
  assert {layer.compute_dtype for layer in model.layers} == {'float32'}
  # Far beyond float16: the first layer gives 4 e5, the second 2 e11.
  model.layers[1].kernel.assign(np.full([4, 512], confidence_models.MAX_WEIGHT))
  model.layers[1].bias.assign(np.full([512], 4e5))
  model.layers[-1].kernel.assign(np.full([512, 4], confidence_models.MAX_WEIGHT))
  sigma = model(np.array([[1, 2, 3, -4]], np.float16)).numpy()
  assert sigma.dtype == np.float32
  np.testing.assert_allclose(sigma, confidence_models.MAX_SIGMA, rtol=1e-3)


def test_an_unknown_parametrisation_is_refused():
  with pytest.raises(UserError, match="softplus or log_variance, not 'exp'"):
    confidence_models.confidence_mlp(4, parametrisation='exp')


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
