import pytest

from dble_tf import files
from dble_tf.errors import UserError
from launch import workdir as workdirs


def test_a_run_is_finished_once_its_metrics_are_there(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  workdir.start('--seed=1\n')
  assert not workdir.is_finished
  workdir.metrics.write_text('{"seed": 1}')
  assert workdir.is_finished
  assert workdir.read_metrics() == {'seed': 1}


def test_without_a_model_it_says_how_to_train_one(tmp_path):
  with pytest.raises(UserError, match='no trained model'):
    workdirs.Workdir(tmp_path).load_model()


def test_a_model_of_an_unfinished_run_is_refused(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  workdir.start('--seed=1\n')
  workdir.model.write_bytes(b'')
  workdir.checkpoints.mkdir()
  with pytest.raises(UserError, match='not finished'):
    workdir.load_model()
  workdir.metrics.write_text('{}')
  workdir.require_model()


def test_a_truncated_model_is_named(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  workdir.start('--seed=1\n')
  workdir.model.write_bytes(b'PK half of a zip')
  with pytest.raises(UserError, match='model.keras cannot be read'):
    workdir.load_model()


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path):
  workdir = workdirs.Workdir(tmp_path / 'thesis')
  workdir.check()  # Not there yet: welcome.
  workdir.path.mkdir()
  workdir.check()  # Empty: welcome.
  files.replacing(workdir.config).__enter__().write_text('half')
  workdir.check()  # Killed while it began: welcome.
  (workdir.path / 'plots').mkdir()
  with pytest.raises(UserError, match='holds no run'):
    workdir.check()
  workdir.config.write_text('--seed=1\n')
  workdir.check()  # A run: welcome.


def test_what_killed_processes_left_is_removed_and_what_is_whole_stays(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  whole = [workdir.model, workdir.export / 'models.config', workdir.export / 'digits' / '1']
  half = [files.replacing(path).__enter__() for path in (
      *whole, workdir.reliability, workdir.export / 'digits' / '2')]
  for path in (*whole, *half):
    path.write_text('')
  workdir.remove_incomplete()
  assert all(path.exists() for path in whole)
  assert not any(path.exists() for path in half)


def test_settings_are_recognised(tmp_path):
  workdir = workdirs.Workdir(tmp_path / 'run')
  assert not workdir.holds('--seed=1\n')
  workdir.start('--seed=1\n')
  assert workdir.holds('--seed=1\n')
  assert not workdir.holds('--seed=2\n')


def test_starting_removes_earlier_results_and_nothing_else(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  results = [workdir.metrics, workdir.model, workdir.predictions, workdir.reliability,
             workdir.tensorboard / 'events', workdir.checkpoints / 'step-1.npz']
  others = [workdir.export / '1' / 'saved_model.pb', workdir.path / 'notes.txt',
            workdir.reliability.parent / 'mine.png']
  for path in results + others:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('old')
  killed = files.replacing(workdir.export / '2').__enter__()
  killed.mkdir()
  workdir.start('--seed=1\n')
  assert not any(path.exists() for path in [*results, killed])
  assert all(path.exists() for path in others)


def test_a_second_process_is_kept_out_until_the_first_is_done(tmp_path):
  workdir = workdirs.Workdir(tmp_path / 'run')
  with workdir.lock():
    with pytest.raises(UserError, match='Another process is at work'):
      with workdirs.Workdir(tmp_path / 'run').lock():
        pass
  with workdir.lock():
    assert workdir.path.is_dir()


def test_runs_of_other_settings_are_refused_finished_or_not(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  workdir.require('--seed=1\n', 'or run')  # Nothing there: welcome.
  workdir.start('--seed=1\n')
  workdir.require('--seed=1\n', 'or run')
  with pytest.raises(UserError, match='an unfinished run of other settings.*or run'):
    workdir.require('--seed=2\n', 'or run')
  workdir.metrics.write_text('{}')
  with pytest.raises(UserError, match='a finished run of other settings'):
    workdir.require('--seed=2\n', 'or run')


def test_a_place_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'file').write_text('no directory')
  with pytest.raises(UserError, match='file/run cannot be written.*--workdir'):
    with workdirs.Workdir(tmp_path / 'file' / 'run').lock():
      pass


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
