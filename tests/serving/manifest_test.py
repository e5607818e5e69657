import hashlib
import json

import pytest
import tensorflow as tf
from etils import epath

from dble_tf.serving import manifest

FACTS = {'model': 'pets', 'version': 3, 'class_names': ['ant', 'bee'],
         'threshold': 0.75, 'warm_up_requests': 6}
ABSTENTION = {
    'target': {'risk': 0.01}, 'is_met': True,
    'threshold': {'risk': 0.005, 'coverage': 0.9, 'images': 2000},
    'validation': {'risk': 0.0, 'coverage': 0.5, 'images': 300},
    'test': {'risk': 0.0125, 'coverage': 0.875, 'images': 10000}}


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """A SavedModel that doubles numbers."""
  path = tmp_path_factory.mktemp('saved') / '3'
  module = tf.Module()
  module.factor = tf.Variable(2.0)
  module.double = tf.function(
      lambda numbers: {'doubled': module.factor * numbers},
      input_signature=[tf.TensorSpec([None, 5], tf.float32, 'numbers')])
  tf.saved_model.save(module, str(path), signatures={'double': module.double})
  return epath.Path(path)


def read(directory, **facts):
  manifest.write(directory, {**FACTS, **facts})
  return (json.loads((directory / 'manifest.json').read_text()),
          (directory / 'README.md').read_text())


def test_signatures_are_those_of_the_saved_model(directory):
  content, text = read(directory)
  assert content['signatures'] == {'double': {
      'inputs': {'numbers': {'dtype': 'float32', 'shape': [None, 5]}},
      'outputs': {'doubled': {'dtype': 'float32', 'shape': [None, 5]}}}}
  assert '- `double`: `numbers` float32 [B, 5] -> `doubled` float32 [B, 5]' in text


def test_weights_have_their_checksum(directory):
  content, _ = read(directory)
  weights = 'variables/variables.data-00000-of-00001'
  assert set(content['sha256']) == {
      weights, 'variables/variables.index', 'saved_model.pb'}
  assert content['sha256'][weights] == hashlib.sha256(
      (directory / weights).read_bytes()).hexdigest()


def test_what_is_known_of_the_run_is_kept(directory):
  content, text = read(
      directory, seed=4, method='dble', dataset='pets', flags=['--seed=4'],
      metrics={'test': {'accuracy': 0.9, 'failure_auroc': None}})
  assert content['seed'] == 4 and content['flags'] == ['--seed=4']
  assert content['class_names'] == ['ant', 'bee']
  assert 'data pets, method dble, seed 4.' in text and 'Classes: ant, bee.' in text
  assert '| test | 0.9000 | – |' in text


def test_risk_and_coverage_are_stated(directory):
  content, text = read(directory, abstention=ABSTENTION)
  assert content['threshold'] == 0.75 and content['abstention'] == ABSTENTION
  assert '`confidence` is at least 0.75' in text and 'a risk of 1 %.' in text
  assert ('| threshold, 2,000 | 90.00 % | 0.50 % |\n'
          '| validation, 300 | 50.00 % | 0.00 % |\n'
          '| test, 10,000 | 87.50 % | 1.25 % |\n') in text


def test_a_threshold_that_accepts_all_or_nothing_is_stated(directory):
  assert 'no target was set' in read(directory, threshold=0.0)[1]
  everything = read(directory, threshold=0.0, abstention=ABSTENTION)[1]
  assert 'true for every answer' in everything and 'no target' not in everything
  judged = {'risk': None, 'coverage': 0.0, 'images': 5}
  nothing = read(directory, threshold=2.0, abstention={
      'target': {'risk': 0.01}, 'is_met': False, 'threshold': judged})[1]
  assert 'nothing is accepted' in nothing
  assert '| threshold, 5 | 0.00 % | – |' in nothing


def test_missing_warm_up_requests_are_stated(directory):
  assert 'no warm-up requests' in read(directory, warm_up_requests=0)[1]
  assert 'runs 6 warm-up requests' in read(directory)[1]
