import pytest

from dble_tf.errors import UserError
from launch.benchmarks import measurements
from launch.benchmarks import random_data
from launch.settings import experiment


@pytest.fixture(scope='module')
def values():
  return experiment.parse([
      '--dataset=digits', '--num_shots=2', '--num_queries=3', '--batch_size=20',
      '--representation_size=8'])


@pytest.fixture(scope='module')
def data():
  return random_data.make('digits', 400)


def are_positive(numbers):
  return all(number > 0 for number in numbers.values())


def test_steps_are_compared_with_vanilla_and_without_a_confidence_model(values, data):
  result = measurements.training(values, data, rounds=1)
  assert result['images'] == 10 * 5
  names = {'vanilla', 'prototypical', 'support_query', 'leave_one_out'}
  assert set(result['seconds']) == set(result['to_vanilla']) == names
  assert are_positive(result['seconds'])
  assert result['to_vanilla']['vanilla'] == 1
  seconds = result['seconds']
  assert result['to_prototypical'] == pytest.approx(
      seconds['leave_one_out'] / seconds['prototypical'])


def test_a_step_of_all_replicas_is_compared_with_one_on_as_many_images(values, data):
  result = measurements.replicas(values, data, rounds=1)
  assert result['images'] == 4 * 10 * 5  # An episode for each of the four.
  assert set(result['seconds']) == {'1', '4'}
  assert are_positive(result['seconds']) and result['to_one']['1'] == 1


def test_the_settings_measured_are_not_changed(values, data):
  before = values.flag_values_dict()
  measurements.training(values, data, rounds=1)
  assert values.flag_values_dict() == before


def test_the_pipeline_is_measured_as_the_data_set_grows(values, data, monkeypatch):
  monkeypatch.setattr(measurements, 'POPULATIONS', ((10, 10), (20, 1000)))
  result = measurements.input_pipeline(values, data, rounds=1)
  assert result['images_per_second'] > 0
  assert list(result['seconds_per_image']) == [
      '10 classes of 10 images', '20 classes of 1,000 images']
  assert are_positive(result['seconds_per_image'])


def test_inference_is_measured_against_the_encoder(values, data, monkeypatch):
  monkeypatch.setattr(measurements, 'SAMPLES', (1, 3))
  result = measurements.inference(values, data, rounds=1)
  assert result['images'] == 20
  assert set(result['seconds']) == {'1', '3', 'encoder'}
  assert result['to_encoder']['encoder'] == 1


def test_centers_are_measured_against_predicting_the_same_images(values, data):
  result = measurements.centers(values, data, rounds=1)
  assert result['images'] == 80
  assert result['to_encoder'] == pytest.approx(
      result['seconds']['centers'] / result['seconds']['encoder'])


def test_a_step_is_measured_at_each_size(values, data, monkeypatch):
  monkeypatch.setattr(measurements, 'SIZES', {
      'num_ways': (2, 10, 50), 'representation_size': (4, 8)})
  result = measurements.sizes(values, data, rounds=1)
  # Digits have ten classes, so there is nothing to measure at fifty.
  assert list(result['num_ways']) == ['2', '10']
  assert list(result['representation_size']) == ['4', '8']


def test_an_experiment_is_read_by_name_with_sigma_as_it_is_learned():
  values = measurements.read_flags('mnist')
  assert values.dataset == 'mnist' and values.encoder == 'mlp'
  assert values.scaling == 'none'


def test_a_process_that_fails_is_an_error_that_says_why():
  with pytest.raises(UserError, match='No flag file nowhere'):
    measurements.startup('nowhere', rounds=1)
