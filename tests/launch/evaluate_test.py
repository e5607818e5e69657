import json
import shutil

import keras
import numpy as np
import pytest

from tests import in_process
from tests import keras_file


@pytest.fixture
def workdir(finished, tmp_path):
  """A finished run, moved."""
  return shutil.copytree(finished[0], tmp_path / 'moved')


def read_metrics(workdir):
  return json.loads((workdir / 'metrics.json').read_text())


def test_evaluate_computes_the_same_figures_from_the_saved_model(workdir, launch):
  before = read_metrics(workdir)
  for name in ('predictions.npz', 'plots/reliability.png'):
    (workdir / name).unlink()
  done = launch('evaluate', f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  after = read_metrics(workdir)
  assert after.keys() == before.keys()
  assert after['test'] == pytest.approx(before['test'], rel=1e-5)
  assert after['validation'] == pytest.approx(before['validation'], rel=1e-5)
  assert list(after['parts']) == list(before['parts'])
  for name, part in after['parts'].items():
    assert part['test'] == pytest.approx(before['parts'][name]['test'], rel=1e-4)
  assert (workdir / 'predictions.npz').exists()
  assert (workdir / 'plots/reliability.png').exists()


def test_figures_are_of_the_versions_of_now_and_training_is_as_it_was(workdir):
  before = read_metrics(workdir)
  (workdir / 'metrics.json').write_text(json.dumps({
      **before, 'versions': {'keras': '2.0', 'numpy': '1.0'}, 'seconds': 1234.5,
      'images': 6789, 'replicas': 8}))
  done = in_process.evaluate(f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  after = read_metrics(workdir)
  assert after['versions'] == before['versions']
  assert after['versions']['keras'] == keras.__version__
  assert (after['seconds'], after['images'], after['replicas']) == (1234.5, 6789, 8)
  assert ' in 1234 s, ' in done.stdout


def test_evaluating_what_was_never_trained_says_so(tmp_path):
  done = in_process.evaluate(f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert 'no trained model' in done.stderr
  assert not list(tmp_path.iterdir())


def test_a_run_that_lost_its_figures_gets_them_back(workdir):
  before = read_metrics(workdir)
  (workdir / 'metrics.json').unlink()
  done = in_process.evaluate(f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  after = read_metrics(workdir)
  assert after['test'] == pytest.approx(before['test'], rel=1e-5)
  assert (after['experiment'], after['steps']) == ('digits', 30)
  assert 'seconds' not in after


@pytest.mark.parametrize('run', [in_process.evaluate, in_process.export])
def test_a_model_of_an_older_version_is_refused_with_what_to_do(run, workdir):
  before = read_metrics(workdir)
  keras_file.make_older(workdir / 'model.keras')
  done = run(f'--workdir={workdir}')
  assert done.returncode == 1 and not done.stdout
  message, = done.stderr.splitlines()
  assert f'error: {workdir}/model.keras cannot be loaded' in message
  assert 'another version' in message and 'train again' in message
  assert read_metrics(workdir) == before
  assert [path.name for path in (workdir / 'export/digits').iterdir()] == ['1']


@pytest.mark.parametrize('run', [in_process.evaluate, in_process.export])
def test_settings_of_an_older_version_are_refused_with_what_to_do(run, workdir):
  with open(workdir / 'config.flags', 'a') as config:
    config.write('--confidence_candidates=default\n')
  done = run(f'--workdir={workdir}')
  assert done.returncode == 1 and not done.stdout
  message, = done.stderr.splitlines()
  assert 'config.flags is from another version' in message
  assert 'confidence_candidates' in message and '--overwrite' in message


def test_weights_that_are_damaged_are_named(workdir):
  path = workdir / 'model.keras'
  content = np.frombuffer(path.read_bytes(), np.uint8).copy()
  content[len(content) // 2:] = 0
  path.write_bytes(content.tobytes())
  done = in_process.evaluate(f'--workdir={workdir}')
  assert done.returncode == 1
  assert 'model.keras cannot be loaded' in done.stderr
