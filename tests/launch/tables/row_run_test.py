import pathlib
import sys

import pytest
from etils import epath

from dble_tf.errors import UserError
from launch.cli import invocation
from launch.cli import preemption
from launch.tables import row_run
from launch.tables.row_run import RowRun
from launch.tables.rows import ROWS
from tests.launch.tables.flag_values import parse


def run(root, row, *arguments, seed=7):
  return RowRun(*parse(*arguments), epath.Path(root), row, seed)


def finish(member):
  member.workdir.start(member.config, 'of-digits', None)
  member.workdir.metrics.write_text('{}')


def test_runs_differ_by_row(tmp_path):
  config = {row: run(tmp_path, row).config for row in ROWS}
  assert '--method=dble\n' in config['dble_all']
  assert '--confidence_training=all\n' in config['dble_all']
  assert '--confidence_training=errors\n' in config['dble']
  assert all('--seed=7\n' in text for text in config.values())
  # As `train` records it, which makes the runs the same.
  assert all('--threshold_size=0\n' in text for text in config.values())
  assert len(set(config.values())) == len(config)


@pytest.fixture
def trained(monkeypatch):
  """The arguments of the processes that stand in for training, and their program."""
  calls, program = [], ['pass']

  def process(module):
    assert module == 'train'
    return [sys.executable, '-c', program[0]]

  popen = row_run.subprocess.Popen

  def start(command):
    calls.append(command[3:])
    return popen(command)

  monkeypatch.setattr(invocation, 'process', process)
  monkeypatch.setattr(row_run.subprocess, 'Popen', start)
  return calls, program


def test_training_gets_settings_devices_data_and_directory(trained, tmp_path):
  calls, _ = trained
  member = run(tmp_path, 'mixup', '--data_dir=data here', '--strategy=none')
  member.train()
  assert '--data_dir' not in member.config
  assert calls == [[
      *member.config.splitlines(), '--strategy=none', '--data_dir=data here',
      f'--workdir={pathlib.Path(tmp_path) / "mixup-7"}']]
  run(tmp_path, 'mixup').train()
  assert not any(argument.startswith(('--data_dir', '--strategy'))
                 for argument in calls[1])


def test_the_network_of_a_finished_base_is_taken(trained, tmp_path):
  calls, _ = trained
  member = run(tmp_path, 'trust_score')
  member.train()
  finish(*member.bases)
  member.train()
  taken = f'--trained_runs={pathlib.Path(tmp_path) / "vanilla-7"}'
  assert [taken in arguments for arguments in calls] == [False, True]


def test_an_ensemble_takes_the_networks_of_runs_of_different_seeds(trained, tmp_path):
  calls, _ = trained
  member = run(tmp_path, 'deep_ensemble', '--ensemble_size=3')
  assert [base.title for base in member.bases] == [
      'vanilla, seed 7', 'vanilla, seed 8', 'vanilla, seed 9']
  for base in member.bases:
    assert not any('--trained_runs' in ' '.join(arguments) for arguments in calls)
    finish(base)
    calls.clear()
    member.train()
  paths = ','.join(str(base.workdir.path) for base in member.bases)
  assert f'--trained_runs={paths}' in calls[0]


@pytest.mark.parametrize('code, error', [
    (75, preemption.Preempted), (130, KeyboardInterrupt)])
def test_a_run_that_is_told_to_stop_stops_all(trained, tmp_path, code, error):
  _, program = trained
  program[0] = f'raise SystemExit({code})'
  with pytest.raises(error):
    run(tmp_path, 'vanilla').train()


def test_a_run_that_fails_is_reported(trained, tmp_path, capfd):
  _, program = trained
  program[0] = 'raise SystemExit(3)'
  run(tmp_path, 'vanilla').train()
  assert 'vanilla, seed 7: failed with exit code 3' in capfd.readouterr().err


def test_directories_of_other_settings_are_refused(tmp_path):
  finish(run(tmp_path, 'vanilla', '--learning_rate=0.2'))
  with pytest.raises(UserError, match='vanilla-7 holds a finished run of other'):
    run(tmp_path, 'vanilla').check()
  run(tmp_path, 'vanilla', '--learning_rate=0.2').check()
  run(tmp_path, 'vanilla', seed=8).check()


def test_finished_runs_are_found_by_their_settings_whatever_their_seed(tmp_path):
  for seed in (10, 2):
    finish(run(tmp_path, 'dble', seed=seed))
  finish(run(tmp_path, 'dble_all', seed=3))  # Another row.
  finish(run(tmp_path, 'dble', '--epochs=9', seed=4))  # Other settings.
  unfinished = run(tmp_path, 'dble', seed=5)
  unfinished.workdir.start(unfinished.config, 'of-digits', None)
  moved = run(tmp_path, 'dble', seed=6)  # Its seed is not that of its directory.
  finish(moved)
  moved.workdir.path.rename(epath.Path(tmp_path) / 'dble-7')
  (tmp_path / 'dble-old').mkdir()
  found = row_run.finished_runs(*parse(), epath.Path(tmp_path), 'dble')
  assert [member.seed for member in found] == [2, 10]
