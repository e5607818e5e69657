"""DBLE's calibration: class centers, alpha and T, and models without sigma."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from dble_tf import calibration
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.errors import UserError
from dble_tf.model import DBLE
from dble_tf.serving.export import export
from tests import linear


def make_model(sigma=0.5, distance_scale=0.1, **arguments):
  """A model whose distances, by default, are too sure: a sigma pays."""
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([4, 1, 1], dtype='uint8'), keras.layers.Rescaling(distance_scale),
      keras.layers.Flatten()])
  model = DBLE(encoder, 3, **{
      'num_shots': 1, 'confidence_model': ConfidenceModel(4, dropout=0.0), **arguments})
  if model.confidence_model is not None:
    model.confidence_model.scale.assign(sigma)
  model.compile(keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01))
  return model


def some_images(seed, n=600):
  rng = np.random.default_rng(seed)
  class_ids = np.arange(n) % 3
  greys = rng.normal(60 + 40 * class_ids[:, np.newaxis], 70, size=[n, 4])
  return np.clip(greys, 0, 255).astype(np.uint8).reshape(n, 4, 1, 1), class_ids


def batches(seed):
  return tf.data.Dataset.from_tensor_slices(some_images(seed)).batch(64)


def calibrated_model(**arguments):
  model = make_model(**arguments)
  model.calibrate(batches(0), batches(1))
  return model


def nll(model, seed=1):
  return model.evaluate(batches(seed), verbose=0, return_dict=True)['nll']


# Class centers


def test_centers_are_class_means_over_all_batches():
  images, class_ids = linear.some_images(n=37)
  model = linear.make_model()
  model.fit_centers(linear.batches(images, class_ids, batch_size=5))
  np.testing.assert_allclose(
      model.centers, linear.class_means(model, images, class_ids), rtol=1e-4)
  np.testing.assert_array_equal(model.center_counts, [10, 9, 9, 9])


def test_a_class_without_images_has_no_center_and_is_named():
  images, _ = linear.some_images(n=6)
  model = linear.make_model()
  with pytest.raises(UserError, match=r'\[1, 3\]'):
    model.fit_centers(linear.batches(images, [0, 0, 2, 2, 0, 2]))
  assert not model.has_centers


@pytest.mark.parametrize('as_given', [
    lambda ids: ids[:, np.newaxis], lambda ids: ids.astype(np.float32),
    lambda ids: ids.astype(np.uint8)], ids=['column', 'floats', 'bytes'])
def test_labels_may_be_given_in_several_ways(as_given):
  images, class_ids = linear.some_images()
  model, other = linear.make_model(), linear.make_model()
  model.fit_centers(linear.batches(images, class_ids))
  with_weights = tf.data.Dataset.from_tensor_slices(
      (images, as_given(class_ids), np.zeros(40))).batch(16)
  other.fit_centers(with_weights)
  np.testing.assert_array_equal(model.centers, other.centers)
  np.testing.assert_array_equal(other.represent(with_weights).class_ids, class_ids)


def test_valid_centers_are_kept():
  model = make_model()
  model.fit_centers(batches(0))
  model.centers.assign(np.ones([3, 4]))  # As if fitted on other data.
  model.calibrate(batches(0), batches(1))
  np.testing.assert_array_equal(model.centers, np.ones([3, 4]))


# Alpha and T


def test_alpha_and_t_are_fitted_by_the_held_out_nll():
  model = make_model()
  model.fit_centers(batches(0))
  before = nll(model)
  images, class_ids = some_images(1)
  h = model.encoder.predict(images, verbose=0)
  expected = calibration.fit(calibration.HeldOut(
      h, model.confidence_model(h).numpy(), class_ids,
      tf.constant(model.centers.numpy()), tf.constant(model.noise.numpy())))
  model.calibrate(batches(0), batches(1))
  assert nll(model) < before - 1e-3
  assert nll(model) == pytest.approx(expected.nll, rel=1e-4)
  assert float(model.sigma_scale) == pytest.approx(expected.sigma_scale, rel=1e-2)
  assert float(model.temperature) == pytest.approx(expected.temperature, rel=1e-2)
  assert abs(expected.temperature - 1) > 0.05
  assert int(model.calibration_size) == 600 and model.uses_sigma
  model.require_calibrated()


def test_representations_calibrate_as_their_batches_do():
  model = calibrated_model()
  other = make_model()
  other.calibrate(batches(0), other.represent(batches(1)))
  for mine, theirs in zip(model.weights, other.weights):
    np.testing.assert_array_equal(theirs, mine, err_msg=mine.path)


def test_without_scaling_sigma_stays_as_it_is():
  model = calibrated_model(scaling='none')
  assert (float(model.sigma_scale), float(model.temperature)) == (1.0, 1.0)
  images, _ = some_images(2, 5)
  h = model.encoder.predict(images, verbose=0)
  np.testing.assert_allclose(
      model.predict(images, verbose=0)['sigma'], model.confidence_model(h), rtol=1e-5)
  model.require_calibrated()


def test_sigma_is_multiplied_and_distances_are_divided():
  model = make_model()
  model.fit_centers(batches(0))
  images, _ = some_images(2, 5)
  before = model.predict(images, verbose=0)
  model.sigma_scale.assign(3.0)
  np.testing.assert_allclose(
      model.predict(images, verbose=0)['sigma'], 3 * before['sigma'], rtol=1e-5)
  model.temperature.assign(2.0)
  for sigma_scale in (0.0, 1e-6):  # Without sigma, and with hardly any.
    model.sigma_scale.assign(sigma_scale)
    after = model.predict(images, verbose=0)
    np.testing.assert_allclose(
        after['probabilities'], special.softmax(-after['distances'] / 2, axis=1),
        rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(after['label'], before['label'])


def test_saving_and_exporting_keep_alpha_and_temperature(tmp_path):
  model = make_model()
  model.fit_centers(batches(0))
  model.sigma_scale.assign(3.0)
  model.temperature.assign(0.7)
  model.calibration_size.assign(1)
  images, _ = some_images(2)
  expected = model.predict(images, verbose=0)
  np.testing.assert_allclose(expected['sigma'].mean(), 3 * 0.5, rtol=0.1)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  exported = tf.saved_model.load(str(export(model, tmp_path / 'export')))
  for answers in (loaded.predict(images, verbose=0),
                  exported.signatures['serving_default'](images=images)):
    np.testing.assert_allclose(
        answers['confidence'], expected['confidence'], rtol=1e-5)
  assert loaded.scaling == 'fitted'
  loaded.require_calibrated()


def test_weights_alone_keep_the_calibration(tmp_path):
  model = calibrated_model()
  model.save_weights(tmp_path / 'model.weights.h5')
  other = make_model()
  other.load_weights(tmp_path / 'model.weights.h5')
  assert float(other.sigma_scale) == float(model.sigma_scale) != 1.0
  other.require_calibrated()


def test_training_on_makes_what_was_fitted_invalid():
  model = calibrated_model()
  assert float(model.sigma_scale) != 1.0
  episodes = np.random.default_rng(0).integers(
      256, size=[4, 2, 3, 2, 4, 1, 1], dtype=np.uint8)
  model.fit(tf.data.Dataset.from_tensor_slices(episodes), verbose=0)
  assert float(model.sigma_scale) == 1.0
  assert not model.has_centers and int(model.calibration_size) == 0


# Without sigma


def model_without_sigma():
  model = make_model()
  model.fit_centers(batches(0))
  model.sigma_scale.assign(0.0)
  model.calibration_size.assign(600)
  return model


def test_a_disabled_confidence_model_is_not_counted():
  model = make_model()
  model.fit_centers(batches(0))
  assert len(model.inference_variables) == len(model.theta) + 4
  model = model_without_sigma()
  assert not model.uses_sigma
  assert model.inference_variables == model.theta


@pytest.mark.parametrize('answer', [
    lambda model, images: model.predict(images, verbose=0),
    lambda model, images: model(images),
    lambda model, images: model.predict_from(model.represent(batches(2)).h),
    lambda model, images: model.serve(images)],
    ids=['predict', 'call', 'predict_from', 'serve'])
def test_a_disabled_confidence_model_is_not_run(answer):
  model = model_without_sigma()
  images, _ = some_images(2)
  model.confidence_model.output_layer.bias.assign(np.full(4, np.nan))
  answers = answer(model, images)
  distances = model.predict(images, verbose=0)['distances']
  np.testing.assert_allclose(
      answers['probabilities'], special.softmax(-distances, axis=1),
      rtol=1e-3, atol=1e-6)
  np.testing.assert_array_equal(answers['sigma'], np.zeros_like(answers['sigma']))


def test_a_disabled_confidence_model_is_not_exported(tmp_path):
  prototypical = make_model(confidence_model=None)
  prototypical.fit_centers(batches(0))
  with_sigma = make_model(scaling='none')
  with_sigma.fit_centers(batches(0))
  models = [with_sigma, model_without_sigma(), prototypical]
  shapes = []
  for place, model in enumerate(models):
    version = export(model, tmp_path / str(place))
    shapes.append(sorted(tuple(shape) for _, shape in tf.train.list_variables(
        str(version / 'variables' / 'variables')) if shape))  # Alpha is a scalar.
  assert shapes[1] == shapes[2]
  assert (4, 512) in shapes[0] and (4, 512) not in shapes[1]
  images, _ = some_images(2)
  exports = [tf.saved_model.load(str(tmp_path / str(place) / 'model' / '1'))
             for place in (1, 2)]
  mine, plain = (one.serving_default(images=tf.constant(images)) for one in exports)
  np.testing.assert_allclose(mine['confidence'], plain['confidence'], rtol=1e-6)
  np.testing.assert_array_equal(mine['sigma'], np.zeros(600))


# Without held-out images


@pytest.mark.parametrize('arguments, takes', [
    ({}, True), ({'scaling': 'none'}, False), ({'confidence_model': None}, False)])
def test_held_out_images_are_made_use_of_and_never_needed(arguments, takes):
  model = make_model(**arguments)
  assert model.takes_held_out == takes and not model.needs_held_out
  model.calibrate(batches(0))
  model.require_calibrated()


def test_without_held_out_images_alpha_is_the_center_of_its_prior(tmp_path):
  model = make_model()
  model.calibrate(batches(0))
  assert float(model.sigma_scale) == pytest.approx(calibration.PRIOR.center)
  assert (float(model.temperature), int(model.calibration_size)) == (1.0, 0)
  images, _ = some_images(2)
  expected = model.predict(images, verbose=0)
  h = model.encoder.predict(images, verbose=0)
  np.testing.assert_allclose(
      expected['sigma'], calibration.PRIOR.center * model.confidence_model(h),
      rtol=1e-5)
  exported = tf.saved_model.load(str(export(model, tmp_path)))
  np.testing.assert_allclose(
      exported.serving_default(images=images)['confidence'], expected['confidence'],
      rtol=1e-5)


def test_alpha_is_the_center_of_its_prior_also_where_centers_came_first():
  model = make_model()
  model.fit_centers(batches(0))
  model.calibrate(batches(0))
  assert float(model.sigma_scale) == pytest.approx(calibration.PRIOR.center)


def test_what_held_out_images_have_fitted_stays_without_them():
  model = calibrated_model()
  fitted = float(model.sigma_scale), float(model.temperature)
  assert abs(fitted[0] - calibration.PRIOR.center) > 0.02
  model.calibrate(batches(0))
  assert (float(model.sigma_scale), float(model.temperature)) == fitted
  assert int(model.calibration_size) == 600


def test_held_out_images_can_come_later():
  model, expected = make_model(), calibrated_model()
  model.calibrate(batches(0))
  model.calibrate(batches(0), batches(1))
  for mine, theirs in zip(model.weights, expected.weights):
    np.testing.assert_array_equal(theirs, mine, err_msg=mine.path)


def test_a_fit_without_validation_ends_with_the_center_of_the_prior():
  model = make_model()
  episodes = np.random.default_rng(0).integers(
      256, size=[4, 2, 3, 2, 4, 1, 1], dtype=np.uint8)
  model.fit(tf.data.Dataset.from_tensor_slices(episodes), train_data=batches(0),
            verbose=0)
  assert float(model.sigma_scale) == pytest.approx(calibration.PRIOR.center)
  model.require_calibrated()


# Refusals


@pytest.mark.parametrize('nothing', [batches(1).take(0), some_images(1)])
def test_held_out_images_that_cannot_be_used_are_refused(nothing):
  model = make_model()
  with pytest.raises(UserError, match='finite tf.data.Dataset'):
    model.calibrate(batches(0), nothing)
  assert not model.has_centers  # Nothing was done by halves.


def test_a_confidence_model_without_finite_answers_is_refused():
  model = make_model()
  model.fit_centers(batches(0))
  model.confidence_model.output_layer.bias.assign(np.full(4, np.nan))
  with pytest.raises(UserError, match='diverged'):
    model.calibrate(batches(0), batches(1))


def test_an_alpha_needs_centers_first():
  model = make_model()
  with pytest.raises(UserError, match='no class centers yet'):
    model.fit_held_out(model.represent(batches(1)))


def test_an_unknown_scaling_is_refused():
  with pytest.raises(UserError, match="'fitted' or 'none', not 'much'"):
    make_model(scaling='much')
