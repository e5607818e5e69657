import json
import os
import signal
import subprocess

import pytest

SHORT = ['--flagfile=launch/digits.flags', '--epochs=1', '--steps_per_epoch=5',
         '--representation_size=32']
COMPARED = ['--methods=vanilla,trust_score,deep_ensemble', '--ensemble_size=1',
            '--seeds=1']


@pytest.fixture(scope='module')
def compared(launch, tmp_path_factory):
  """Three methods that share a network, of which one run fails."""
  root = tmp_path_factory.mktemp('comparison')
  # A link to nowhere in place of a run's directory is a failure of that run alone.
  (root / 'trust_score-0').symlink_to('nowhere')
  return root, launch('compare', *SHORT, *COMPARED, f'--workdir={root}')


def read(root, run=None):
  path = root / 'table.json' if run is None else root / run / 'metrics.json'
  return json.loads(path.read_text())


def test_the_tables_hold_what_the_runs_measured(compared):
  root, _ = compared
  lines = read(root)['lines']
  assert list(lines) == [
      'vanilla', 'vanilla+T', 'trust_score', 'deep_ensemble', 'deep_ensemble+T']
  run = read(root, 'vanilla-0')
  assert (run['seed'], run['method']) == (0, 'vanilla')
  assert {name: lines['vanilla']['mean'][name] for name in run['test']} == (
      pytest.approx(run['test'], rel=1e-4))
  scaled = lines['vanilla+T']
  assert scaled['mean']['accuracy'] == lines['vanilla']['mean']['accuracy']
  assert scaled['runs']['0']['temperature'] != 1.0
  nll = f'{run["test"]["nll"]:.4f}'
  assert nll in (root / 'table.md').read_text()
  assert nll in (root / 'table.tex').read_text()
  assert (root / 'table.png').stat().st_size > 1000


def test_a_failed_run_is_reported_and_the_others_go_on(compared):
  root, done = compared
  assert done.returncode == 1
  assert '1 of 3 runs failed: trust_score, seed 0' in done.stderr
  assert 'Traceback' not in done.stderr
  assert read(root)['lines']['trust_score']['failed'] == [0]
  assert '(sparse share 0.05) | failed: 0 |' in (root / 'table.md').read_text()
  assert read(root)['lines']['deep_ensemble']['seeds'] == [0]  # It came after.


def test_networks_are_trained_once_where_methods_share_them(compared):
  root, _ = compared
  vanilla, ensemble = read(root, 'vanilla-0'), read(root, 'deep_ensemble-0')
  assert (root / 'vanilla-0' / 'tensorboard').exists()
  assert not (root / 'deep_ensemble-0' / 'tensorboard').exists()
  assert ensemble['test'] == pytest.approx(vanilla['test'], rel=1e-4)  # It is of one.
  assert ensemble['seconds'] > vanilla['seconds']  # What it would have taken alone.


def test_the_same_command_again_trains_what_is_missing_alone(compared, launch):
  root, _ = compared
  before = {path: path.stat().st_mtime_ns for path in root.glob('*/metrics.json')}
  assert len(before) == 2
  (root / 'trust_score-0').unlink()
  done = launch('compare', *SHORT, *COMPARED, f'--workdir={root}')
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('already finished') == 2
  lines = read(root)['lines']
  assert lines['trust_score']['failed'] == []
  assert lines['trust_score']['mean']['accuracy'] == (
      lines['vanilla']['mean']['accuracy'])
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


def test_one_sweep_at_a_time(launch, tmp_path):
  done = launch('compare', *SHORT, '--sweep=dropout:0.1', '--sweep=dropout:0.2',
                f'--workdir={tmp_path}')
  assert done.returncode == 1
  assert '--sweep=dropout:0.2: already defined as dropout:0.1' in done.stderr


@pytest.mark.slow
def test_a_sweep_of_dble_names_the_best_episodes(launch, tmp_path):
  done = launch('compare', *SHORT, '--methods=dble', f'--workdir={tmp_path}',
                '--sweep=num_shots+num_queries:1+9,5+5')
  assert done.returncode == 0, done.stderr
  table = json.loads((tmp_path / 'sweep.json').read_text())
  nll = {one['arguments']: one['mean']['nll'] for one in table['tries']}
  assert set(nll) == {'--num_shots=1 --num_queries=9', '--num_shots=5 --num_queries=5'}
  assert table['best'] == {'dble': min(nll, key=nll.get)}
  metrics = tmp_path / 'sweep-num_shots+num_queries-1+9' / 'dble-0' / 'metrics.json'
  assert nll['--num_shots=1 --num_queries=9'] == pytest.approx(
      json.loads(metrics.read_text())['validation']['nll'], rel=1e-4)


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
