"""What model_test and vanilla_errors_test do not show: candidates, and how they learn."""

import keras
import numpy as np
import pytest

from dble_tf import confidence_models
from dble_tf.errors import UserError
from dble_tf.model import DBLE


def plain(**arguments):
  return confidence_models.confidence_mlp(
      2, **{'dropout': 0.0, 'weight_decay': 0.0, **arguments})


def make_model(confidence_training, confidence_model=None, rate=0.1, **arguments):
  keras.utils.set_random_seed(0)
  encoder = keras.Sequential([
      keras.Input([2, 1, 1], dtype='uint8'), keras.layers.Rescaling(0.01),
      keras.layers.Flatten()])
  model = DBLE(
      encoder, plain() if confidence_model is None else confidence_model, 2,
      num_shots=1,
      confidence_training=confidence_training, **arguments)
  model.compile(
      keras.optimizers.SGD(0.0), keras.optimizers.SGD(rate, momentum=0.9))
  return model


def episode(*greys):
  """Support and query of class 0, support and query of class 1."""
  images = np.array(greys, np.uint8).reshape(1, 2, 2, 1, 1, 1)
  return np.repeat(images, 2, axis=3)


SEPARATE = episode(0, 0, 250, 250)
SWAPPED = episode(0, 250, 250, 0)  # Each query is at the other class's center.


@pytest.mark.parametrize('confidence_training, batch, learns', [
    ('errors', SEPARATE, False), ('errors', SWAPPED, True), ('all', SEPARATE, True)])
def test_phi_learns_from_the_samples_it_is_given(confidence_training, batch, learns):
  model = make_model(confidence_training)
  before = model.confidence_model.get_weights()
  logs = model.train_on_batch(batch, return_dict=True)
  after = model.confidence_model.get_weights()
  assert logs['error_rate'] == (batch is SWAPPED)
  assert (logs['confidence_loss'] > 0) == learns
  assert any(not np.array_equal(a, b) for a, b in zip(before, after)) == learns


def test_another_choice_is_refused_and_names_all():
  with pytest.raises(UserError, match="'errors' or 'all' or 'held_out', not 'some'"):
    make_model('some')


def test_the_choice_is_saved(tmp_path):
  make_model('all').save(tmp_path / 'model.keras')
  assert keras.models.load_model(tmp_path / 'model.keras').confidence_training == ['all']


def test_several_learn_side_by_side_as_each_would_alone():
  keras.utils.set_random_seed(1)
  makers = [plain, lambda: plain(parametrisation='log_variance'), plain]
  settings = [('errors', 'queries'), ('errors', 'errors'), ('all', 'queries')]
  candidates = [make() for make in makers]
  copies = [keras.models.clone_model(one) for one in candidates]
  for one, copy in zip(candidates, copies):
    copy.set_weights(one.get_weights())
  half_wrong = np.concatenate([SEPARATE, SWAPPED])
  together = make_model(
      [training for training, _ in settings], candidates,
      normalisation=[normalisation for _, normalisation in settings])
  for _ in range(3):
    together.train_on_batch(half_wrong)
  results = []
  for copy, (training, normalisation) in zip(copies, settings):
    alone = make_model(training, copy, normalisation=normalisation)
    for _ in range(3):
      alone.train_on_batch(half_wrong)
    results.append(copy.get_weights())
  for candidate, expected in zip(together.candidates, results):
    for mine, other in zip(candidate.get_weights(), expected):
      np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
  assert not np.allclose(candidates[0].get_weights()[-1], candidates[2].get_weights()[-1])


def test_a_mean_over_errors_is_larger_than_over_queries_by_their_share():
  half_wrong = np.concatenate([SEPARATE, SWAPPED])
  losses = [
      make_model('errors', normalisation=normalisation).train_on_batch(
          half_wrong, return_dict=True)['confidence_loss']
      for normalisation in ('queries', 'errors')]
  assert losses[1] == pytest.approx(2 * losses[0], rel=1e-5)


def test_the_chosen_candidate_gives_sigma_before_and_after_saving(tmp_path):
  images = np.array([[[[0]], [[9]]]], np.uint8)
  model = make_model(
      'errors', [plain(initial_sigma=0.1), plain(initial_sigma=0.4)])
  model.centers.assign([[0, 0], [1, 1]])
  model.center_counts.assign([1, 1])
  for place, sigma in ((0, 0.1), (1, 0.4), (0, 0.1), (1, 0.4)):
    model.choose(place)
    np.testing.assert_allclose(
        model.predict(images, verbose=0)['sigma'], sigma, rtol=1e-2)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_allclose(
      loaded.predict(images, verbose=0)['sigma'], 0.4, rtol=1e-2)
  assert sum(np.prod(one.shape) for one in model.answering) == (2 * 512 + 512) + (
      512 * 2 + 2)


@pytest.mark.parametrize('arguments', [
    {'parametrisation': parametrisation, 'per_dimension': per_dimension,
     'normalize_input': normalize_input}
    for parametrisation in confidence_models.PARAMETRISATIONS
    for per_dimension in (True, False) for normalize_input in (True, False)])
@pytest.mark.parametrize('normalisation', ['queries', 'errors'])
def test_nothing_drives_phi_to_nan(arguments, normalisation):
  def check(model, batch, steps=30):
    for _ in range(steps):
      model.train_on_batch(batch)
    for weight in model.confidence_model.get_weights():
      assert np.all(np.isfinite(weight))
    sigma = model.confidence_model.predict(np.ones([1, 2]), verbose=0)
    assert np.all((sigma >= 0) & (sigma <= confidence_models.MAX_SIGMA))

  # Rates without reason, of which the last makes momentum overflow, and a weight decay
  # that multiplies weights by -89 a step.
  for rate, decay in ((1e6, 0.0), (100.0, 0.9), (3e38, 0.9)):
    check(make_model(
        'errors', plain(weight_decay=decay, **arguments), rate,
        normalisation=normalisation), SWAPPED)


def test_representations_that_are_no_numbers_leave_phi_alone():
  model = make_model('errors')
  before = model.confidence_model.get_weights()
  h = np.array([[[[np.nan, 0.0], [1.0, 1.0]], [[np.inf, 0.0], [1e30, 1.0]]]], np.float32)
  model.update_phi(h, np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.array([0, 1]))
  for old, new in zip(before, model.confidence_model.get_weights()):
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize('candidates, chosen', [([], 0), ([plain()], 1), ([plain()], -1)])
def test_a_place_without_confidence_model_is_refused(candidates, chosen):
  with pytest.raises(UserError, match=f'There are {len(candidates)} confidence models'):
    make_model('errors', candidates, chosen=chosen)


def test_settings_for_another_number_of_candidates_are_refused():
  with pytest.raises(UserError, match='2 words for 1 confidence models'):
    make_model(['errors', 'all'])


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
