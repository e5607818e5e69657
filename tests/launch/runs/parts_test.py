import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy.spatial import distance

from dble_tf import calibration
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.model import DBLE
from launch.runs import parts

SEEDS = {'test': 2, 'validation': 1}


def make_model(scale=0.8, **arguments):
  """Calibrated without held-out images; sigma differs between images."""
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([4, 1, 1], dtype='uint8'), keras.layers.Rescaling(0.02),
      keras.layers.Flatten()])
  phi = ConfidenceModel(4, hidden_units=8)
  phi.scale.assign(scale)
  phi.output_layer.kernel.assign(np.random.default_rng(1).normal(size=[8, 4]))
  model = DBLE(encoder, 3, num_shots=1, confidence_model=phi, **arguments)
  model.compile('sgd', 'sgd')
  model.calibrate(batches(0))
  return model


def some_images(seed, n=300):
  rng = np.random.default_rng(seed)
  class_ids = np.arange(n) % 3
  images = np.clip(
      rng.normal(60 + 40 * class_ids[:, np.newaxis], 50, size=[n, 4]), 0, 255)
  return images.astype(np.uint8).reshape(n, 4, 1, 1), class_ids


def batches(seed):
  return tf.data.Dataset.from_tensor_slices(some_images(seed)).batch(64)


def compare(model, splits=('test', 'validation')):
  return parts.compare(model, {
      split: model.represent(batches(SEEDS[split])) for split in splits})


def equation_10(model, split, sigma_of, sigma_scale, temperature=1.0):
  """By hand: the softmax averaged over points around h, [n, M]."""
  images, _ = some_images(SEEDS[split])
  h, centers = images.reshape(-1, 4) * 0.02, model.centers.numpy()
  sigma = sigma_scale * sigma_of(h.astype(np.float32))
  return np.mean([
      special.softmax(-distance.cdist(h + sigma * e, centers) / temperature, axis=1)
      for e in model.noise.numpy()], axis=0)


@pytest.fixture(scope='module')
def model():
  return make_model()


@pytest.fixture(scope='module')
def results(model):
  return compare(model)


def test_every_kind_of_sigma_is_there(results):
  assert list(results) == [
      'prototypical', 'constant', 'as_printed', 'without_held_out']
  for part in results.values():
    assert set(part.probabilities) == {'test', 'validation'}


def test_without_validation_images_nothing_is_fitted(model, results):
  alone = compare(model, ['test'])
  assert list(alone) == ['prototypical', 'as_printed', 'without_held_out']
  for name, part in alone.items():
    assert part[:2] == results[name][:2]
    np.testing.assert_array_equal(
        part.probabilities['test'], results[name].probabilities['test'])


@pytest.mark.parametrize('squared_scale', [None, 0.3])
@pytest.mark.parametrize('split', SEEDS)
def test_prototypical_is_the_softmax_that_theta_learns_with(split, squared_scale):
  model = make_model(squared_scale=squared_scale)
  part = compare(model, [split])['prototypical']
  images, _ = some_images(SEEDS[split])
  d = distance.cdist(images.reshape(-1, 4) * 0.02, model.centers.numpy())
  expected = special.softmax(-d if squared_scale is None else -0.3 * d**2, axis=1)
  np.testing.assert_allclose(part.probabilities[split], expected, rtol=1e-3, atol=1e-6)
  assert (part.sigma_scale, part.temperature) == (None, 1.0)


@pytest.mark.parametrize('split', SEEDS)
@pytest.mark.parametrize('name, sigma_scale', [
    ('as_printed', 1.0), ('without_held_out', calibration.PRIOR.center)])
def test_a_learned_sigma_is_taken_with_a_factor_known_beforehand(
    model, results, name, sigma_scale, split):
  part = results[name]
  assert (part.sigma_scale, part.temperature) == (sigma_scale, 1.0)
  expected = equation_10(
      model, split, lambda h: model.confidence_model(h).numpy(), sigma_scale)
  np.testing.assert_allclose(part.probabilities[split], expected, rtol=1e-3, atol=1e-5)


def test_without_held_out_data_is_what_the_model_is_without_them(model, results):
  images, _ = some_images(SEEDS['test'])
  np.testing.assert_allclose(
      results['without_held_out'].probabilities['test'],
      model.predict(images, verbose=0)['probabilities'], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('split', SEEDS)
def test_a_constant_sigma_is_the_same_everywhere(model, results, split):
  part = results['constant']
  expected = equation_10(model, split, np.ones_like, part.sigma_scale, part.temperature)
  np.testing.assert_allclose(part.probabilities[split], expected, rtol=1e-3, atol=1e-5)


def test_a_constant_sigma_has_the_best_validation_nll(model, results):
  _, class_ids = some_images(SEEDS['validation'])

  def nll(probabilities):
    return -np.log(probabilities[np.arange(300), class_ids]).mean()

  fitted = results['constant']
  best = min(
      nll(equation_10(model, 'validation', np.ones_like, alpha, temperature))
      for alpha in np.geomspace(0.02, 5, 15)
      for temperature in np.geomspace(0.2, 5, 15))
  assert nll(fitted.probabilities['validation']) <= best + 1e-4


def test_a_constant_sigma_does_not_depend_on_the_learned_one(results):
  other = compare(make_model(scale=0.1))
  assert other['constant'][:2] == pytest.approx(results['constant'][:2])
  np.testing.assert_allclose(
      other['constant'].probabilities['test'],
      results['constant'].probabilities['test'], rtol=1e-4)
  assert not np.allclose(
      other['as_printed'].probabilities['test'],
      results['as_printed'].probabilities['test'], rtol=1e-2)


def test_probabilities_do_not_depend_on_what_was_calibrated(results):
  model = make_model()
  model.sigma_scale.assign(0.0)
  model.temperature.assign(3.0)
  for name, part in compare(model).items():
    for split in SEEDS:
      np.testing.assert_array_equal(
          part.probabilities[split], results[name].probabilities[split])
