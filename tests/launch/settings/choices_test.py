"""The names that flags offer are those of the library."""

from dble_tf import calibration
from dble_tf import confidence_model
from dble_tf import data
from dble_tf import encoders
from dble_tf.training import strategies
from launch.runs import methods
from launch.settings import choices
from launch.settings import experiment


def test_data_sets():
  assert set(choices.DATASETS) == set(data.AUGMENTATION_POLICIES)


def test_encoders():
  assert set(choices.ENCODERS) == set(encoders.ENCODERS)


def test_methods():
  assert set(choices.METHODS) == set(methods.METHODS)


def test_scalings():
  assert set(choices.SCALINGS) == set(calibration.SCALINGS)


def test_what_a_confidence_model_learns_from():
  assert set(choices.CONFIDENCE_TRAINING) == set(confidence_model.LEARNS_FROM)


def test_strategies_and_compilation():
  assert set(choices.STRATEGIES) == set(strategies.STRATEGIES)
  assert set(choices.JIT_COMPILE) == set(strategies.JIT_COMPILE)


def test_bases_and_own_flags_are_methods_and_settings():
  settings = set(experiment.parse([]))
  for method in choices.METHODS.values():
    assert method.base is None or method.base in choices.METHODS
    assert set(method.own_flags) <= settings
