import numpy as np
import pytest
from etils import epath
from scipy import special

from dble_tf import calibration
from dble_tf import evaluation
from dble_tf.errors import UserError
from launch.tables import answers
from launch.tables.rows import Line
from launch.tables.rows import LINES
from tests.launch.tables import fake_runs

PLAIN = Line('vanilla', 'vanilla')
SCALED = PLAIN._replace(has_temperature=True)


@pytest.fixture
def run(tmp_path):
  return epath.Path(tmp_path) / 'run'


@pytest.mark.parametrize('split', ['test', 'validation'])
def test_answers_as_trained_are_those_of_the_run(run, split):
  arrays = fake_runs.write(run)
  predictions, temperature = answers.read(run, PLAIN, split)
  assert temperature is None and set(predictions) == {
      'true_label', 'label', 'confidence', 'probabilities'}
  for name, values in predictions.items():
    np.testing.assert_array_equal(values, arrays[f'{split}_{name}'])


def test_a_temperature_makes_up_for_logits_that_are_too_large(run):
  calibrated = fake_runs.write(run, num_images=2000)
  fake_runs.write(run, num_images=2000, sharpness=3.0)
  predictions, temperature = answers.read(run, SCALED, 'test')
  assert temperature == pytest.approx(3.0, rel=0.15)
  # p^(1/T), renormalized.
  powers = calibrated['test_probabilities'] ** (3.0 / temperature)
  np.testing.assert_allclose(
      predictions['probabilities'], powers / powers.sum(axis=1, keepdims=True),
      rtol=1e-3)
  rows = np.arange(2000)
  np.testing.assert_array_equal(
      predictions['confidence'],
      predictions['probabilities'][rows, predictions['label']])
  np.testing.assert_array_equal(predictions['label'], calibrated['test_label'])


def test_the_temperature_is_that_of_temperature_scaling(run):
  # Logits and log probabilities differ by a constant for each image.
  arrays = fake_runs.write(run, sharpness=2.0)
  _, temperature = answers.read(run, SCALED, 'test')
  logits = np.log(arrays['validation_probabilities']) + 5.0
  assert temperature == pytest.approx(calibration.fit_temperature(
      logits, arrays['validation_true_label']), rel=1e-4)


def test_probabilities_of_zero_keep_the_fit_finite(run):
  arrays = fake_runs.write(run, sharpness=500.0)
  assert (arrays['test_probabilities'] == 0).any()
  predictions, temperature = answers.read(run, SCALED, 'test')
  assert np.isfinite(temperature)
  np.testing.assert_allclose(predictions['probabilities'].sum(axis=1), 1.0)


@pytest.mark.parametrize('name, part', [
    ('dble_prototypical', 'prototypical'), ('dble_as_printed', 'as_printed'),
    ('dble_no_held_out', 'without_held_out'), ('dble_all', 'as_printed')])
def test_parts_of_dble_have_the_same_labels_with_their_own_confidences(
    run, name, part):
  arrays = fake_runs.write(run, with_parts=True)
  predictions, _ = answers.read(run, LINES[name], 'test')
  expected = arrays[f'test_probabilities_{part}']
  np.testing.assert_array_equal(predictions['label'], arrays['test_label'])
  np.testing.assert_array_equal(predictions['probabilities'], expected)
  np.testing.assert_array_equal(
      predictions['confidence'], expected[np.arange(200), arrays['test_label']])


def test_the_temperature_of_a_part_is_fitted_to_its_own_probabilities(run):
  arrays = fake_runs.write(run, with_parts=True)
  predictions, temperature = answers.read(run, LINES['dble_prototypical+T'], 'test')
  part = np.log(arrays['validation_probabilities_prototypical'])
  assert temperature == pytest.approx(calibration.fit_temperature(
      part, arrays['validation_true_label']))
  np.testing.assert_allclose(
      predictions['probabilities'],
      special.softmax(np.log(arrays['test_probabilities_prototypical']) / temperature,
                      axis=1), rtol=1e-5)


def test_figures_are_those_of_the_evaluation_with_the_methods_own_order(run):
  fake_runs.write(run, with_score=True)
  measured = answers.measure(run, PLAIN)
  predictions, _ = answers.read(run, PLAIN, 'test')
  assert 'score' in predictions
  assert measured.figures == pytest.approx(evaluation.figures(predictions), rel=1e-4)
  assert measured.num_images == 200
  assert 0 < measured.ece_floor[0] < measured.ece_floor[1]


def test_resamples_are_the_same_for_all_runs(run):
  fake_runs.write(run)
  first = answers.measure(run, PLAIN).resampled['accuracy']
  assert first.shape == (1 + answers.NUM_RESAMPLES,) and len(set(first)) > 10
  fake_runs.write(run, sharpness=5.0)  # The same labels.
  np.testing.assert_array_equal(
      first, answers.measure(run, PLAIN).resampled['accuracy'])


def test_without_errors_there_is_no_auroc(run):
  fake_runs.write(run, skill=1000.0)
  assert answers.measure(run, PLAIN).figures['failure_auroc'] is None


def test_predictions_of_another_version_are_named_with_a_remedy(run):
  fake_runs.write(run, with_validation=False)
  with pytest.raises(UserError, match='validation_.*launch.evaluate --workdir=.*run$'):
    answers.read(run, SCALED, 'test')
