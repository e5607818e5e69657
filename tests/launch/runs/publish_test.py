import dataclasses
import json

import numpy as np
import pytest
from absl import flags

from dble_tf import data as datasets
from dble_tf import evaluation
from dble_tf.errors import UserError
from dble_tf.serving import warm_up
from dble_tf.serving.thresholds import Target
from launch.runs import publish
from launch.runs.workdir import Workdir
from launch.settings import experiment
from launch.settings import targets
from tests import tiny


@pytest.fixture(scope='module')
def data():
  class_ids = np.arange(9) % 3
  return datasets.from_arrays(
      (tiny.IMAGES, class_ids), (tiny.IMAGES[:6], class_ids[:6]), tiny.CLASS_NAMES,
      validation_size=6, threshold_size=3)


@pytest.fixture(scope='module')
def model():
  return tiny.model()


def parse(*arguments):
  values = flags.FlagValues()
  experiment.define_flags(values)
  targets.define_flags(values)
  values(['test', '--dataset=digits', *arguments])
  return values


def predictions(confidence, is_correct):
  return {'label': np.where(is_correct, 0, 1), 'confidence': np.array(confidence),
          'true_label': np.zeros(len(is_correct))}


@pytest.fixture
def write(model, data, tmp_path, monkeypatch):
  """(target, confidence and correctness by split) -> manifest."""
  def write(target, **judged):
    workdir = Workdir(tmp_path)
    workdir.start('--seed=7\n', data.fingerprint, None)
    monkeypatch.setattr(evaluation, 'figures', lambda predictions: {'accuracy': 0.5})
    publish.write(
        workdir, model, data, parse('--experiment=my run', '--seed=7'), target,
        {name: predictions(*split) for name, split in judged.items()})
    return json.loads((tmp_path / 'export/my_run/1/manifest.json').read_text())
  return write


def test_the_threshold_is_chosen_on_its_own_images_and_judged_on_all(
    write, data, capsys):
  manifest = write(
      Target(risk=0.4), threshold=([0.9, 0.8, 0.2], [True, True, False]),
      validation=([0.99, 0.98], [False, False]),
      test=([0.95, 0.7, 0.6, 0.1], [True, False, True, True]))
  # (0 + 1) / (2 + 1) is within 0.4, (1 + 1) / (3 + 1) is not; halfway is 0.5.
  assert manifest['threshold'] == pytest.approx(0.5)
  assert manifest['abstention'] == {
      'target': {'risk': 0.4}, 'is_met': True,
      'threshold': {'risk': 0.0, 'coverage': pytest.approx(2 / 3), 'images': 3},
      'validation': {'risk': 1.0, 'coverage': 1.0, 'images': 2},
      'test': {'risk': pytest.approx(1 / 3), 'coverage': 0.75, 'images': 4}}
  assert manifest['class_names'] == list(tiny.CLASS_NAMES)
  assert (manifest['seed'], manifest['flags']) == (7, ['--seed=7'])
  assert manifest['dataset'] == 'digits'
  assert manifest['data_fingerprint'] == data.fingerprint
  assert manifest['metrics'] == {
      'validation': {'accuracy': 0.5}, 'test': {'accuracy': 0.5}}
  assert 'keras' in manifest['versions'] and manifest['method'] == 'dble'
  assert not capsys.readouterr().err


def test_a_risk_that_cannot_be_held_accepts_nothing_and_says_so(write, capsys):
  some = ([0.9, 0.8], [True, True])
  manifest = write(Target(risk=0.01), threshold=some, test=some)
  assert manifest['threshold'] > 1 and not manifest['abstention']['is_met']
  assert manifest['abstention']['test'] == {'risk': None, 'coverage': 0.0, 'images': 2}
  told = capsys.readouterr().err
  assert 'on the 3 images of --threshold_size' in told and 'accepts nothing' in told


def test_without_a_target_or_the_serving_api_all_is_accepted(
    write, capsys, monkeypatch):
  monkeypatch.setattr(warm_up, 'is_possible', lambda: False)
  some = ([0.9, 0.8], [True, True])
  manifest = write(Target(), validation=some, test=some)
  assert manifest['threshold'] == 0 and 'abstention' not in manifest
  assert 'pip install tensorflow-serving-api' in capsys.readouterr().err


def test_targets_come_from_the_flags(data):
  assert publish.target(parse('--target_risk=0.01'), data) == Target(risk=0.01)
  assert publish.target(parse('--target_coverage=0.9'), data) == Target(coverage=0.9)
  assert publish.target(parse(), data) == Target()
  with pytest.raises(UserError, match='not both'):
    publish.target(parse('--target_risk=0.1', '--target_coverage=0.9'), data)


def test_a_target_without_images_for_its_threshold_is_refused(data):
  none = datasets.Split(data.test.images[:0], data.test.class_ids[:0])
  for change, remedy in (
      ({'threshold': none}, 'train with --threshold_size, or with the target'),
      ({'threshold': none, 'validation': none},
       'hold some out with --validation_size')):
    changed = dataclasses.replace(data, **change)
    with pytest.raises(UserError, match=f'this run has none: {remedy}'):
      publish.target(parse('--target_risk=0.1'), changed)
    assert not publish.target(parse(), changed).is_given
