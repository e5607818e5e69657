import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.confidence import ConfidenceModel
from dble_tf.model import DBLE
from launch.runs import parts

BOTH = ['sigma_scale', 'sigma_scale_and_temperature']


def make_model(initial_sigma):
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([4, 1, 1], dtype='uint8'), keras.layers.Rescaling(0.02),
      keras.layers.Flatten()])
  model = DBLE(encoder, 3, num_shots=1,
               confidence_model=ConfidenceModel(4, initial_sigma=initial_sigma))
  model.compile('sgd', 'sgd')
  model.fit_centers(batches(0))
  return model


def batches(seed, n=300):
  rng = np.random.default_rng(seed)
  class_ids = np.arange(n) % 3
  images = np.clip(
      rng.normal(60 + 40 * class_ids[:, np.newaxis], 50, size=[n, 4]), 0, 255)
  return tf.data.Dataset.from_tensor_slices(
      (images.astype(np.uint8).reshape(n, 4, 1, 1), class_ids)).batch(64)


def compare(model):
  return parts.compare(model, {
      'test': model.represent(batches(2)), 'validation': model.represent(batches(1))})


@pytest.fixture(scope='module')
def model():
  return make_model(0.8)


@pytest.fixture(scope='module')
def results(model):
  return compare(model)


def find(results, sigma, scaling):
  found, = [part for part in results if (part.sigma, part.scaling) == (sigma, scaling)]
  return found


def test_every_kind_of_sigma_is_there_with_all_that_can_be_fitted(results):
  assert [(part.sigma, part.scaling) for part in results] == [
      ('none', 'none'), ('none', 'temperature'),
      *(('constant', scaling) for scaling in BOTH),
      *(('learned', scaling) for scaling in ['none', *BOTH])]


@pytest.mark.parametrize('sigma, scaling', [
    ('none', 'none'), ('none', 'temperature'),
    *(('learned', scaling) for scaling in ['none', *BOTH])])
def test_a_part_is_what_the_model_would_be(model, results, sigma, scaling):
  part = find(results, sigma, scaling)
  model.sigma_scale.assign(part.sigma_scale)
  model.temperature.assign(part.temperature)
  for split, seed in (('validation', 1), ('test', 2)):
    expected = model.evaluate(batches(seed), verbose=0, return_dict=True)
    for figure in ('accuracy', 'ece', 'nll'):
      assert part.figures[split][figure] == pytest.approx(
          expected[figure], rel=1e-3, abs=1e-5)


def test_fitting_improves_the_validation_split(results):
  def nll(sigma, scaling):
    return find(results, sigma, scaling).figures['validation']['nll']

  assert nll('none', 'temperature') <= nll('none', 'none')
  assert nll('learned', 'sigma_scale') < nll('learned', 'none')


@pytest.mark.parametrize('initial_sigma', [0.8, 0.1])
def test_a_constant_sigma_is_that_of_a_model_that_has_learned_nothing(initial_sigma):
  # It starts from nearly the same sigma everywhere.
  results = compare(make_model(initial_sigma))
  learned, constant = (
      find(results, sigma, 'sigma_scale').figures['test']['nll']
      for sigma in ('learned', 'constant'))
  assert learned == pytest.approx(constant, rel=1e-2)


def test_a_constant_sigma_follows_no_distance(results):
  constant, learned = (
      find(results, sigma, 'sigma_scale').sigma_figures
      for sigma in ('constant', 'learned'))
  assert constant['mean'] == 1 and constant['rank_correlation'] is None
  assert learned['rank_correlation'] is not None


def test_accuracy_does_not_depend_on_sigma(results):
  assert len({part.figures['test']['accuracy'] for part in results}) == 1


def test_an_entry_of_metrics_json_has_the_figures_of_a_split_once(results):
  entry = results[0].as_json()
  assert set(entry) == {
      'sigma', 'scaling', 'sigma_scale', 'temperature', 'sigma_figures', 'test',
      'validation'}
  assert entry['test'] == results[0].figures['test']


def test_without_validation_images_nothing_is_fitted(model):
  results = parts.compare(model, {'test': model.represent(batches(2))})
  assert [(part.sigma, part.scaling) for part in results] == [
      ('none', 'none'), ('learned', 'none')]
