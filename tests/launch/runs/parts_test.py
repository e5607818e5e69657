import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import confidence_models
from dble_tf import parts
from dble_tf.model import DBLE


@pytest.fixture(scope='module')
def model():
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([4, 1, 1], dtype='uint8'), keras.layers.Rescaling(0.02),
      keras.layers.Flatten()])
  model = DBLE(
      encoder, [confidence_models.confidence_mlp(4, initial_sigma=0.8),
                confidence_models.confidence_mlp(4, initial_sigma=0.1)],
      3, num_shots=1)
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


@pytest.fixture(scope='module')
def results(model):
  return parts.compare(
      model, ['wide', 'narrow'], {'validation': batches(1), 'test': batches(2)})


def find(results, sigma, scaling):
  found, = [one for one in results
            if (one['sigma'], one['scaling']) == (sigma, scaling)]
  return found


def test_every_kind_of_sigma_is_there_with_all_that_can_be_fitted(results):
  both = ['sigma_scale', 'sigma_scale_and_temperature']
  assert [(one['sigma'], one['scaling']) for one in results] == [
      ('none', 'none'), ('none', 'temperature'),
      *(('constant', scaling) for scaling in both),
      *(('wide', scaling) for scaling in ['none', *both]),
      *(('narrow', scaling) for scaling in ['none', *both])]


@pytest.mark.parametrize('place, name', enumerate(['wide', 'narrow']))
@pytest.mark.parametrize('scaling', ['none', 'sigma_scale', 'sigma_scale_and_temperature'])
def test_a_part_is_what_the_model_would_be(model, results, place, name, scaling):
  part = find(results, name, scaling)
  model.sigma_scale.assign([part['sigma_scale']] * 2)
  model.temperature.assign([part['temperature']] * 2)
  model.choose(place)
  for split, seed in (('validation', 1), ('test', 2)):
    expected = model.evaluate(batches(seed), verbose=0, return_dict=True)
    for figure, value in expected.items():
      assert part[split][figure] == pytest.approx(value, rel=1e-3, abs=1e-5)


def test_what_is_fitted_is_better_on_the_validation_split(results):
  nll = lambda sigma, scaling: find(results, sigma, scaling)['validation']['nll']
  assert nll('none', 'temperature') <= nll('none', 'none')
  for name in ('wide', 'narrow'):
    assert nll(name, 'sigma_scale') < nll(name, 'none')


def test_a_constant_sigma_is_what_a_candidate_that_has_learned_nothing_is(results):
  # Both candidates start from nearly the same sigma everywhere.
  assert find(results, 'wide', 'sigma_scale')['test']['nll'] == pytest.approx(
      find(results, 'constant', 'sigma_scale')['test']['nll'], rel=1e-2)


def test_a_constant_candidate_is_shown_as_it_is_too(model):
  constant = DBLE(model.encoder, confidence_models.constant_sigma(4), 3, num_shots=1)
  constant.fit_centers(batches(0))
  results = parts.compare(constant, ['constant'], {'test': batches(2)})
  assert [(one['sigma'], one['scaling']) for one in results] == [
      ('none', 'none'), ('constant', 'none')]
  assert results[1]['sigma_figures']['mean'] == pytest.approx(0.05)
  assert results[1]['sigma_figures']['rank_correlation'] is None


def test_all_are_judged_on_what_no_candidate_has_learned_from(model):
  learned = DBLE(
      model.encoder, [confidence_models.confidence_mlp(4) for _ in range(2)], 3,
      num_shots=1, confidence_training=['errors', 'held_out'], scaling='none')
  learned.compile('sgd', 'sgd')
  learned.complete(batches(0), batches(1))
  results = parts.compare(
      learned, ['errors', 'held_out'], {'validation': batches(1), 'test': batches(2)})
  for nll, name in zip(learned.held_out_nll.numpy(), ('errors', 'held_out')):
    assert find(results, name, 'none')['validation']['nll'] == pytest.approx(nll)


def test_accuracy_does_not_depend_on_sigma(results):
  assert len({one['test']['accuracy'] for one in results}) == 1


def test_without_validation_images_nothing_is_fitted(model):
  results = parts.compare(model, ['wide', 'narrow'], {'test': batches(2)})
  assert [(one['sigma'], one['scaling']) for one in results] == [
      ('none', 'none'), ('wide', 'none'), ('narrow', 'none')]


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
