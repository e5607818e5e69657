import json
import os
import signal
import subprocess

import pytest

from launch import compare
from launch import methods

SHORT = ['--flagfile=launch/digits.flags', '--epochs=1', '--steps_per_epoch=10']


@pytest.fixture(scope='module')
def compared(launch, tmp_path_factory):
  """Four methods with two seeds each, of which one run fails."""
  root = tmp_path_factory.mktemp('comparison')
  # A directory where a run's settings should be is a failure of that run alone.
  (root / 'trust_score-1' / 'config.flags').mkdir(parents=True)
  return root, launch(
      'compare', *SHORT, '--methods=trust_score,dble,temperature_scaling,vanilla',
      '--seeds=2', f'--workdir={root}')


def read(root):
  return json.loads((root / 'table.json').read_text())


def test_the_tables_hold_what_the_runs_measured(compared):
  root, _ = compared
  table = read(root)
  assert list(table['rows']) == ['vanilla', 'temperature_scaling', 'trust_score', 'dble']
  for row in ('vanilla', 'temperature_scaling', 'dble'):
    runs = [json.loads((root / f'{row}-{seed}' / 'metrics.json').read_text())
            for seed in (0, 1)]
    accuracies = [run['test']['accuracy'] for run in runs]
    assert runs[0]['seed'] == 0 and runs[1]['seed'] == 1
    assert table['rows'][row]['mean']['accuracy'] == pytest.approx(sum(accuracies) / 2)
  markdown = (root / 'table.md').read_text()
  accuracy = 100 * table['rows']['dble']['mean']['accuracy']
  assert f'{accuracy:.2f}' in markdown
  assert f'{accuracy:.2f}' in (root / 'table.tex').read_text()
  assert (root / 'table.png').stat().st_size > 1000


def test_a_failed_run_is_reported_and_the_others_go_on(compared):
  root, done = compared
  assert done.returncode == 1
  assert '1 of 8 runs failed: trust_score, seed 1' in done.stderr
  assert 'Traceback' not in done.stderr
  assert read(root)['rows']['trust_score']['failed'] == [1]
  assert 'TrustScore (failed with seed 1)' in (root / 'table.md').read_text()
  assert read(root)['runs']['dble']['1'] is not None  # It came after.


def test_networks_are_trained_once_where_methods_share_them(compared):
  root, _ = compared
  vanilla, scaled = (
      json.loads((root / f'{row}-0' / 'metrics.json').read_text())
      for row in ('vanilla', 'temperature_scaling'))
  assert not (root / 'temperature_scaling-0' / 'tensorboard').exists()
  assert scaled['test']['accuracy'] == vanilla['test']['accuracy']
  assert scaled['test']['nll'] != vanilla['test']['nll']
  assert scaled['seconds'] > vanilla['seconds']  # What it would have taken alone.


def test_the_same_command_again_trains_what_is_missing_alone(compared, launch):
  root, _ = compared
  before = {path: path.stat().st_mtime_ns for path in root.glob('*/metrics.json')}
  assert len(before) == 7
  (root / 'trust_score-1' / 'config.flags').rmdir()
  done = launch('compare', *SHORT, '--seeds=2', f'--workdir={root}',
                '--methods=trust_score,dble,temperature_scaling,vanilla')
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('finished already') == 7
  assert read(root)['rows']['trust_score']['failed'] == []
  assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_runs_of_other_settings_are_not_mixed_in(compared, launch):
  root, _ = compared
  done = launch('compare', *SHORT, '--learning_rate=0.2', '--methods=vanilla',
                f'--workdir={root}')
  assert done.returncode == 1
  assert 'vanilla-0' in done.stderr and 'other settings' in done.stderr


def test_an_unknown_method_is_named_with_those_there_are(launch, tmp_path):
  done = launch('compare', *SHORT, '--methods=vanilla,magic', f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert 'no method magic' in done.stderr and 'trust_score' in done.stderr
  assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_the_comparison_and_not_one_run_of_it(command, tmp_path):
  inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    process = subprocess.Popen(
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        **command('compare', *SHORT, '--epochs=500', '--methods=vanilla,dble',
                  '--seeds=1', f'--workdir={tmp_path}'))
  finally:
    signal.signal(signal.SIGINT, inherited)
  for line in process.stdout:
    if 'val_nll' in line:
      break
  os.killpg(process.pid, signal.SIGINT)  # To the run too, as a terminal does.
  output, errors = process.communicate(timeout=120)
  assert process.returncode == 130
  assert 'interrupted' in errors and 'Traceback' not in errors
  assert '[2 of 2]' not in output


def test_all_methods_of_the_paper_are_rows_in_its_order():
  assert compare.GROUPS['all'] == [
      'vanilla', 'mc_dropout', 'temperature_scaling', 'label_smoothing', 'mixup',
      'trust_score', 'prototypical', 'dble', 'deep_ensemble']
  assert compare.GROUPS['ablation'] == ['vanilla', 'vanilla_errors', 'dble_all', 'dble']
  assert set(methods.METHODS) == set(compare.ROWS) - {'dble_all'}


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
