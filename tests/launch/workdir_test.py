import pytest
from absl import flags

from dble_tf.errors import UserError
from launch import experiment
from launch import workdir as workdirs


def test_a_run_is_finished_once_its_metrics_are_there(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  workdir.start('--seed=1\n')
  assert not workdir.is_finished
  workdir.metrics.write_text('{"seed": 1}')
  assert workdir.is_finished
  assert workdir.read_metrics() == {'seed': 1}


def test_an_unfinished_run_has_no_metrics_to_read(tmp_path):
  with pytest.raises(UserError, match='no finished run'):
    workdirs.Workdir(tmp_path).read_metrics()


def test_settings_are_recognised(tmp_path):
  workdir = workdirs.Workdir(tmp_path / 'run')
  assert not workdir.holds('--seed=1\n')
  workdir.start('--seed=1\n')
  assert workdir.holds('--seed=1\n')
  assert not workdir.holds('--seed=2\n')


def test_starting_removes_earlier_results_and_nothing_else(tmp_path):
  workdir = workdirs.Workdir(tmp_path)
  for path in (workdir.metrics, workdir.model, workdir.predictions,
               workdir.reliability, workdir.export / '1' / 'saved_model.pb',
               workdir.tensorboard / 'events', workdir.path / 'notes.txt'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('old')
  workdir.start('--seed=1\n')
  assert sorted(path.name for path in tmp_path.iterdir()) == [
      'config.flags', 'notes.txt']


def test_the_settings_of_a_run_are_a_flagfile_that_gives_the_same_again(tmp_path):
  def parse(*arguments):
    values = flags.FlagValues()
    names = experiment.define_flags(values)
    values(['test', *arguments])
    return workdirs.config_text(values, names), values

  text, values = parse(
      '--dataset=digits', '--decay_at=0.3,0.6', '--seed=5', '--learning_rate=0.03')
  path = tmp_path / 'config.flags'
  path.write_text(text)
  again, parsed = parse(f'--flagfile={path}')
  assert again == text
  assert parsed.decay_at == ['0.3', '0.6']
  assert (parsed.seed, parsed.learning_rate, parsed.num_ways) == (5, 0.03, None)
