"""What DBLE does with held-out data after training: scaling and the choice of phi."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from dble_tf import confidence_models
from dble_tf.serving import export
from dble_tf.errors import UserError
from dble_tf.model import DBLE

SIGMAS = (0.05, 0.9)


def make_model(sigmas=SIGMAS, distance_scale=0.03, **arguments):
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([4, 1, 1], dtype='uint8'), keras.layers.Rescaling(distance_scale),
      keras.layers.Flatten()])
  model = DBLE(
      encoder, [confidence_models.confidence_mlp(4, dropout=0.0, initial_sigma=sigma)
                for sigma in sigmas],
      3, num_shots=1, **arguments)
  model.compile(keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01))
  return model


def some_images(seed, n=600):
  rng = np.random.default_rng(seed)
  class_ids = np.arange(n) % 3
  greys = rng.normal(60 + 40 * class_ids[:, np.newaxis], 70, size=[n, 4])
  return np.clip(greys, 0, 255).astype(np.uint8).reshape(n, 4, 1, 1), class_ids


def batches(seed):
  return tf.data.Dataset.from_tensor_slices(some_images(seed)).batch(64)


def nll(model, seed=1):
  return model.evaluate(batches(seed), verbose=0, return_dict=True)['nll']


@pytest.mark.parametrize('scaling', ['sigma_scale', 'sigma_scale_and_temperature'])
def test_completing_fits_alpha_by_the_held_out_nll(scaling):
  # Distances that are too sure: a sigma pays.
  model = make_model(distance_scale=0.1, scaling=scaling)
  model.fit_centers(batches(0))
  before = nll(model)
  fitted = model.fit_sigma_scale(batches(1))
  assert nll(model) < before - 1e-3
  assert nll(model) == pytest.approx(min(one.nll for one in fitted), rel=1e-4)
  expected = np.ones(2)
  expected[model.chosen] = fitted[model.chosen].sigma_scale
  np.testing.assert_allclose(model.sigma_scale, expected, rtol=1e-6)
  has_temperature = scaling == 'sigma_scale_and_temperature'
  assert (model.temperature[model.chosen] != 1.0) == has_temperature


@pytest.mark.parametrize('scaling', ['sigma_scale', 'sigma_scale_and_temperature'])
def test_where_distances_are_calibrated_there_is_no_sigma(scaling):
  model = make_model([0.5], scaling=scaling)
  model.fit_centers(batches(0))
  images, _ = some_images(1, 3000)
  softmax = lambda distances: special.softmax(-distances, axis=1)
  true_probabilities = softmax(model.predict(images, verbose=0)['distances'])
  uniform = np.random.default_rng(0).uniform(size=[len(images), 1])
  class_ids = (uniform > true_probabilities.cumsum(axis=1)[:, :-1]).sum(axis=1)
  fitted, = model.fit_sigma_scale(
      tf.data.Dataset.from_tensor_slices((images, class_ids)).batch(500))
  assert (fitted.sigma_scale, fitted.temperature) == (0.0, 1.0)
  answers = model.predict(images[:50], verbose=0)
  np.testing.assert_allclose(
      answers['probabilities'], softmax(answers['distances']), atol=1e-5)
  model.require_complete()


def test_without_scaling_the_better_candidate_is_chosen_as_it_is():
  sigmas = (5.0, 0.5)
  model = make_model(sigmas, scaling='none')
  model.complete(batches(0), batches(1))
  losses = []
  for place in (0, 1):
    one = make_model(sigmas, scaling='none')
    one.fit_centers(batches(0))
    one.choose(place)
    losses.append(nll(one))
  assert losses[0] != pytest.approx(losses[1], rel=1e-2)
  assert model.chosen == np.argmin(losses)
  np.testing.assert_array_equal(model.sigma_scale, [1.0, 1.0])


def test_sigma_is_multiplied_and_distances_are_divided():
  model = make_model([0.5])
  model.fit_centers(batches(0))
  images, _ = some_images(2, 5)
  before = model.predict(images, verbose=0)
  model.sigma_scale.assign([3.0])
  np.testing.assert_allclose(
      model.predict(images, verbose=0)['sigma'], 3 * before['sigma'], rtol=1e-5)
  model.sigma_scale.assign([0.0])
  model.temperature.assign([2.0])
  after = model.predict(images, verbose=0)
  odds = np.log(after['probabilities'][:, 0] / after['probabilities'][:, 1])
  np.testing.assert_allclose(
      odds, (after['distances'][:, 1] - after['distances'][:, 0]) / 2, atol=1e-4)
  np.testing.assert_array_equal(after['label'], before['label'])


def test_saving_and_exporting_keep_alpha_and_the_choice(tmp_path):
  model = make_model(scaling='sigma_scale_and_temperature')
  model.fit_centers(batches(0))
  model.sigma_scale.assign([1.0, 3.0])
  model.temperature.assign([0.0, 0.7])
  model.choose(1)
  images, _ = some_images(2)
  expected = model.predict(images, verbose=0)
  np.testing.assert_allclose(expected['sigma'].mean(), 3 * SIGMAS[1], rtol=0.1)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  exported = tf.saved_model.load(str(export.export(model, tmp_path / 'export')))
  for answers in (loaded.predict(images, verbose=0),
                  exported.signatures['serving_default'](images=images)):
    np.testing.assert_allclose(
        answers['confidence'], expected['confidence'], rtol=1e-5)
  assert loaded.scaling == 'sigma_scale_and_temperature' and loaded.chosen == 1


def test_weights_alone_keep_the_choice(tmp_path):
  model = make_model((5.0, 0.5), scaling='none')
  model.complete(batches(0), batches(1))
  assert model.chosen == 1
  model.save_weights(tmp_path / 'model.weights.h5')
  other = make_model((5.0, 0.5), scaling='none')
  other.load_weights(tmp_path / 'model.weights.h5')
  assert other.chosen == 1
  other.require_complete()


def test_training_on_makes_what_was_fitted_invalid():
  model = make_model()
  model.complete(batches(0), batches(1))
  assert np.any(model.sigma_scale.numpy() != 1)
  episodes = np.random.default_rng(0).integers(
      256, size=[4, 2, 3, 2, 4, 1, 1], dtype=np.uint8)
  model.fit(tf.data.Dataset.from_tensor_slices(episodes), verbose=0)
  np.testing.assert_array_equal(model.sigma_scale, [1, 1])
  assert model.chosen == 0 and not model.has_centers


def test_several_candidates_train_under_xla():
  episodes = np.random.default_rng(0).integers(
      256, size=[2, 3, 4, 4, 1, 1], dtype=np.uint8)
  results = []
  for jit_compile in (False, True):
    model = make_model()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1),
                  jit_compile=jit_compile)
    logs = model.train_on_batch(episodes, return_dict=True)
    results.append([logs['confidence_loss'],
                    *(weight for one in model.candidates for weight in one.get_weights())])
  assert results[0][0] > 0
  for plain, compiled in zip(*results):
    np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('arguments, needs', [
    ({'scaling': 'none', 'sigmas': [0.1]}, False),
    ({'scaling': 'sigma_scale', 'sigmas': [0.1]}, True),
    ({'scaling': 'none', 'sigmas': [0.1, 0.2]}, True),
    ({'scaling': 'none', 'sigmas': [0.1], 'confidence_training': 'held_out'}, True),
])
def test_held_out_images_are_asked_for_where_something_is_fitted(arguments, needs):
  model = make_model(**arguments)
  assert model.needs_held_out == needs
  if needs:
    with pytest.raises(UserError, match='give them as held_out'):
      model.complete(batches(0))
  else:
    model.complete(batches(0))
    assert model.has_centers


def test_an_export_without_alpha_is_refused(tmp_path):
  model = make_model()
  model.fit_centers(batches(0))
  for write in (lambda: export.export(model, tmp_path / 'a'),
                lambda: model.export(tmp_path / 'b')):
    with pytest.raises(UserError, match='fit_sigma_scale'):
      write()
  assert not list(tmp_path.iterdir())
  model.fit_sigma_scale(batches(1))
  assert export.export(model, tmp_path / 'a').exists()
  as_printed = make_model([0.1], scaling='none')
  as_printed.fit_centers(batches(0))
  assert export.export(as_printed, tmp_path / 'a').name == '2'


def test_without_a_held_out_image_there_is_a_clear_message():
  model = make_model()
  model.fit_centers(batches(0))
  for nothing in (batches(1).take(0), some_images(1)):
    with pytest.raises(UserError, match='finite tf.data.Dataset'):
      model.fit_sigma_scale(nothing)


def test_a_candidate_that_gives_no_numbers_is_never_chosen():
  model = make_model()
  model.fit_centers(batches(0))
  model.candidates[0].layers[-1].bias.assign(np.full(4, np.nan))
  model.fit_sigma_scale(batches(1))
  assert model.chosen == 1
  model.candidates[1].layers[-1].bias.assign(np.full(4, np.nan))
  with pytest.raises(UserError, match='diverged'):
    model.fit_sigma_scale(batches(1))


def test_an_alpha_needs_centers_first():
  with pytest.raises(UserError, match='no class centers yet'):
    make_model().fit_sigma_scale(batches(1))


def test_an_unknown_scaling_is_refused():
  with pytest.raises(UserError, match="sigma_scale_and_temperature, not 'much'"):
    make_model(scaling='much')


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
