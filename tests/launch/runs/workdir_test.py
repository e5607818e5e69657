import shutil

import keras
import pytest

from dble_tf import files
from dble_tf.errors import UserError
from launch.runs.workdir import Workdir
from tests import keras_file
from tests import tiny


def start(workdir, config='--seed=1\n'):
  workdir.start(config, 'fingerprint', None)


def test_a_run_is_finished_once_its_metrics_exist(tmp_path):
  workdir = Workdir(tmp_path)
  start(workdir)
  assert not workdir.is_finished
  workdir.metrics.write_text('{"seed": 1}')
  assert workdir.is_finished
  assert workdir.read_metrics() == {'seed': 1}


def test_without_a_model_it_says_how_to_train_one(tmp_path):
  with pytest.raises(UserError, match='no trained model.*python -m launch.train'):
    Workdir(tmp_path).load_model()


def test_a_model_of_an_unfinished_run_is_refused(tmp_path):
  workdir = Workdir(tmp_path)
  start(workdir)
  workdir.model.write_bytes(b'')
  workdir.checkpoints.mkdir()
  with pytest.raises(UserError, match='not finished'):
    workdir.load_model()
  workdir.metrics.write_text('{}')
  workdir.require_model()


def test_a_truncated_model_is_named(tmp_path):
  workdir = Workdir(tmp_path)
  start(workdir)
  workdir.model.write_bytes(b'PK half of a zip')
  with pytest.raises(UserError, match='model.keras cannot be loaded.*--overwrite'):
    workdir.load_model()


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  path = tmp_path_factory.mktemp('saved') / 'model.keras'
  tiny.model().save(path)
  return path


def test_a_model_of_an_older_version_is_refused_with_what_to_do(saved, tmp_path):
  workdir = Workdir(tmp_path)
  start(workdir)
  shutil.copy(saved, workdir.model)
  assert isinstance(workdir.load_model(), keras.Model)
  keras_file.make_older(workdir.model)
  with pytest.raises(UserError, match=(
      r'model\.keras cannot be loaded.*another version.*chosen, normalisation.*'
      'train again')) as caught:
    workdir.load_model()
  assert str(caught.value).count('train again') == 1


def test_a_class_that_is_gone_is_named_without_its_configuration(saved, tmp_path):
  workdir = Workdir(tmp_path)
  start(workdir)
  shutil.copy(saved, workdir.model)
  keras_file.edit_config(workdir.model, lambda model: model.update(
      module='dble_tf.prototypical', class_name='Prototypical',
      registered_name='dble_tf>Prototypical'))
  with pytest.raises(UserError, match="class 'Prototypical'.*--overwrite") as caught:
    workdir.load_model()
  assert len(str(caught.value)) < 300 and '{' not in str(caught.value)


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path):
  workdir = Workdir(tmp_path / 'thesis')
  workdir.check()  # Absent: welcome.
  workdir.path.mkdir()
  workdir.check()  # Empty: welcome.
  half = files.replacing(workdir.config).__enter__()
  half.write_text('half')
  workdir.record_data('fingerprint', None)
  workdir.check()  # Killed while it began: welcome.
  (workdir.path / 'plots').mkdir()
  with pytest.raises(UserError, match='does not hold a run'):
    workdir.check()
  workdir.config.write_text('--seed=1\n')
  workdir.check()  # A run: welcome.
  assert half.exists()  # Whoever writes it may still be at work.


def test_leftovers_of_killed_processes_are_removed_and_whole_files_stay(tmp_path):
  workdir = Workdir(tmp_path)
  whole = [workdir.model, workdir.export / 'models.config',
           workdir.export / 'digits' / '1']
  half = [files.replacing(path).__enter__() for path in (
      *whole, workdir.reliability, workdir.export / 'digits' / '2')]
  for path in (*whole, *half):
    path.write_text('')
  workdir.remove_incomplete()
  assert all(path.exists() for path in whole)
  assert not any(path.exists() for path in half)


def test_settings_are_recognized(tmp_path):
  workdir = Workdir(tmp_path / 'run')
  assert not workdir.holds('--seed=1\n')
  start(workdir)
  assert workdir.holds('--seed=1\n')
  assert not workdir.holds('--seed=2\n')


def test_data_are_recognized_by_their_content_wherever_they_are(tmp_path):
  workdir = Workdir(tmp_path)
  workdir.require_data('abc', 'or run')  # Unknown data: welcome.
  assert workdir.read_data() == {'fingerprint': None, 'data_dir': None}
  workdir.start('--seed=1\n', 'abc', 'here')
  assert workdir.read_data() == {'fingerprint': 'abc', 'data_dir': 'here'}
  workdir.record_data('abc', 'there')
  assert workdir.read_data()['data_dir'] == 'there'
  workdir.require_data('abc', 'or run')
  with pytest.raises(UserError, match='data differ.*--data_dir, or run'):
    workdir.require_data('abd', 'or run')


def test_starting_removes_earlier_results_and_nothing_else(tmp_path):
  workdir = Workdir(tmp_path)
  results = [workdir.metrics, workdir.model, workdir.predictions, workdir.reliability,
             workdir.sigma, workdir.tensorboard / 'events', workdir.history,
             workdir.checkpoints / 'step-1.npz']
  others = [workdir.export / '1' / 'saved_model.pb', workdir.path / 'notes.txt',
            workdir.reliability.parent / 'mine.png']
  for path in results + others:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('old')
  killed = files.replacing(workdir.export / '2').__enter__()
  killed.mkdir()
  start(workdir)
  assert not any(path.exists() for path in [*results, killed])
  assert all(path.exists() for path in others)


def test_a_second_process_is_kept_out_until_the_first_is_done(tmp_path):
  workdir = Workdir(tmp_path / 'run')
  with workdir.lock():
    with pytest.raises(UserError, match='Another process is at work'):
      with Workdir(tmp_path / 'run').lock():
        pass
  with workdir.lock():
    assert workdir.path.is_dir()


def test_runs_of_other_settings_are_refused_finished_or_not(tmp_path):
  workdir = Workdir(tmp_path)
  workdir.require('--seed=1\n', 'or run')  # Empty: welcome.
  start(workdir)
  workdir.require('--seed=1\n', 'or run')
  with pytest.raises(UserError, match='an unfinished run of other settings.*or run'):
    workdir.require('--seed=2\n', 'or run')
  workdir.metrics.write_text('{}')
  with pytest.raises(UserError, match='a finished run of other settings'):
    workdir.require('--seed=2\n', 'or run')


def test_a_place_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'file').write_text('no directory')
  with pytest.raises(UserError, match='file/run cannot be written.*--workdir'):
    with Workdir(tmp_path / 'file' / 'run').lock():
      pass
