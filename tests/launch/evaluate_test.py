import json
import shutil

import pytest


def test_evaluate_computes_the_same_figures_from_the_saved_model(
    finished, launch, tmp_path):
  workdir, _ = finished
  shutil.copytree(workdir, tmp_path / 'moved')  # A run may be moved.
  workdir = tmp_path / 'moved'
  before = json.loads((workdir / 'metrics.json').read_text())
  for name in ('predictions.npz', 'plots/reliability.png'):
    (workdir / name).unlink()
  done = launch('evaluate', f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  after = json.loads((workdir / 'metrics.json').read_text())
  assert after['test'] == pytest.approx(before['test'], rel=1e-5)
  assert after['validation'] == pytest.approx(before['validation'], rel=1e-5)
  assert after['seconds'] == before['seconds']
  assert (workdir / 'predictions.npz').exists()
  assert (workdir / 'plots/reliability.png').exists()


def test_evaluating_what_was_never_trained_says_so(launch, tmp_path):
  done = launch('evaluate', f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert 'no trained model' in done.stderr and 'Traceback' not in done.stderr


def test_a_run_that_lost_its_figures_gets_them_back(finished, launch, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(finished[0], workdir)
  before = json.loads((workdir / 'metrics.json').read_text())
  (workdir / 'metrics.json').unlink()
  done = launch('evaluate', f'--workdir={workdir}')
  assert done.returncode == 0, done.stderr
  after = json.loads((workdir / 'metrics.json').read_text())
  assert after['test'] == pytest.approx(before['test'], rel=1e-5)
  assert (after['experiment'], after['steps']) == ('digits', 30)


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
