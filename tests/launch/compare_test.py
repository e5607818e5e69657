import json
import os
import signal
import subprocess

import pytest

SHORT = ['--flagfile=launch/digits.flags', '--epochs=1', '--steps_per_epoch=10']
METHODS = '--methods=trust_score,temperature_scaling,vanilla'


@pytest.fixture(scope='module')
def compared(launch, tmp_path_factory):
  """Three methods with two seeds each, of which one run fails."""
  root = tmp_path_factory.mktemp('comparison')
  # A link to nowhere in place of a run's directory is a failure of that run alone.
  (root / 'temperature_scaling-0').symlink_to('nowhere')
  return root, launch(
      'compare', *SHORT, METHODS, '--seeds=2', f'--workdir={root}')


def read(root, run=None):
  path = root / 'table.json' if run is None else root / run / 'metrics.json'
  return json.loads(path.read_text())


def test_the_tables_hold_what_the_runs_measured(compared):
  root, _ = compared
  table = read(root)
  assert list(table['rows']) == ['vanilla', 'temperature_scaling', 'trust_score']
  for row in ('vanilla', 'trust_score'):
    runs = [read(root, f'{row}-{seed}') for seed in (0, 1)]
    assert [run['seed'] for run in runs] == [0, 1]
    assert [run['method'] for run in runs] == [row, row]
    mean = sum(run['test']['nll'] for run in runs) / 2
    assert table['rows'][row]['mean']['nll'] == pytest.approx(mean)
  nll = f'{mean:.4f}'
  assert nll in (root / 'table.md').read_text()
  assert nll in (root / 'table.tex').read_text()
  assert (root / 'table.png').stat().st_size > 1000


def test_a_failed_run_is_reported_and_the_others_go_on(compared):
  root, done = compared
  assert done.returncode == 1
  assert '1 of 6 runs failed: temperature_scaling, seed 0' in done.stderr
  assert 'Traceback' not in done.stderr
  assert read(root)['rows']['temperature_scaling']['failed'] == [0]
  assert '| temperature scaling | 1; failed: 0 |' in (root / 'table.md').read_text()
  assert read(root)['runs']['trust_score']['1'] is not None  # It came after.


def test_networks_are_trained_once_where_methods_share_them(compared):
  root, _ = compared
  vanilla, scaled = read(root, 'vanilla-1'), read(root, 'temperature_scaling-1')
  assert (root / 'vanilla-1' / 'tensorboard').exists()
  assert not (root / 'temperature_scaling-1' / 'tensorboard').exists()
  assert scaled['test']['accuracy'] == vanilla['test']['accuracy']
  assert scaled['test']['nll'] != vanilla['test']['nll']
  assert scaled['seconds'] > vanilla['seconds']  # What it would have taken alone.


def test_the_same_command_again_trains_what_is_missing_alone(compared, launch):
  root, _ = compared
  before = {path: path.stat().st_mtime_ns for path in root.glob('*/metrics.json')}
  assert len(before) == 5
  (root / 'temperature_scaling-0').unlink()
  done = launch('compare', *SHORT, METHODS, '--seeds=2', f'--workdir={root}')
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('already finished') == 5
  assert read(root)['rows']['temperature_scaling']['failed'] == []
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
  assert 'Unknown method "magic"' in done.stderr and 'trust_score' in done.stderr
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
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


@pytest.mark.slow
def test_sigterm_is_passed_on_and_the_same_command_continues_the_run(command, tmp_path):
  arguments = ['compare', *SHORT, '--epochs=3', '--methods=vanilla', '--seeds=1',
               f'--workdir={tmp_path}']
  process = subprocess.Popen(
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, **command(
          *arguments, '--steps_per_epoch=2000'))
  for line in process.stdout:
    if 'Epoch 1/3' in line:
      break
  process.send_signal(signal.SIGTERM)  # To it alone, as a supervisor does.
  output, errors = process.communicate(timeout=120)
  assert process.returncode == 75, errors
  assert 'the same command continues' in errors and 'Traceback' not in errors
  run = tmp_path / 'vanilla-0'
  assert list((run / 'checkpoints').iterdir())
  # Other settings do not take its place.
  refused = subprocess.run(capture_output=True, **command(*arguments))
  assert refused.returncode == 1
  assert 'an unfinished run of other settings' in refused.stderr
  assert list((run / 'checkpoints').iterdir())
