import pytest
from absl import flags

from dble_tf.errors import UserError
from launch.runs import trained_runs
from launch.runs.workdir import Workdir
from launch.settings import experiment


def parse(*arguments):
  values = flags.FlagValues()
  names = experiment.define_flags(values)
  flags.DEFINE_list('trained_runs', [], '', flag_values=values)
  values(['test', '--dataset=digits', *arguments])
  return values, names


@pytest.fixture
def finish(tmp_path):
  """(name, *arguments) -> the path of a finished run that only has its settings."""
  def finish(name, *arguments):
    run = Workdir(tmp_path / name)
    run.start(experiment.config(*parse(*arguments)), 'of-digits', None)
    run.metrics.write_text('{"seconds": 1.0}')
    return str(run.path)
  return finish


def find(paths, *arguments):
  found = trained_runs.find(*parse(f'--trained_runs={",".join(paths)}', *arguments))
  return [str(run.path) for run in found]


def test_none_are_taken_unless_they_are_named():
  assert trained_runs.find(*parse('--method=dble')) == []


@pytest.mark.parametrize('method', ['trust_score', 'temperature_scaling'])
def test_one_run_of_the_same_settings_and_seed_is_taken(method, finish):
  run = finish('run', '--method=vanilla', '--seed=3')
  arguments = f'--method={method}', '--sparse_share=0.1'
  assert find([run], *arguments, '--seed=3') == [run]
  for other in ('--seed=4', '--learning_rate=0.3'):
    with pytest.raises(UserError, match='does not hold a finished run of --method=van'):
      find([run], *arguments, '--seed=3', other)
  with pytest.raises(UserError, match='of 1 run, and --trained_runs names 2: name one'):
    find([run, run], *arguments, '--seed=3')


def test_an_ensemble_takes_as_many_runs_of_different_seeds(finish):
  runs = [finish(f'run {seed}', '--method=vanilla', f'--seed={seed}')
          for seed in (5, 2, 9)]
  arguments = ('--method=deep_ensemble', '--ensemble_size=3')
  assert find(runs, *arguments) == runs
  with pytest.raises(UserError, match='3 runs, .* names 2: name as many as --ensemble'):
    find(runs[:2], *arguments)
  again = finish('again', '--method=vanilla', '--seed=2')
  with pytest.raises(UserError, match='seeds 5, 2, 2: name runs of different ones'):
    find([*runs[:2], again], *arguments)


@pytest.mark.parametrize('settings', [
    ['--method=mixup'], ['--method=vanilla', '--epochs=3']])
def test_an_ensemble_of_other_networks_is_refused(settings, finish):
  runs = [finish('same', '--method=vanilla'), finish('other', '--seed=1', *settings)]
  with pytest.raises(UserError, match='other does not hold a finished run'):
    find(runs, '--method=deep_ensemble', '--ensemble_size=2')


def test_directories_without_a_finished_run_are_refused(finish, tmp_path):
  run = finish('run', '--method=vanilla')
  Workdir(run).metrics.unlink()
  for path in (run, str(tmp_path / 'nowhere')):
    with pytest.raises(UserError, match='does not hold a finished run'):
      find([path], '--method=deep_ensemble', '--ensemble_size=1')


def test_methods_that_have_networks_of_their_own_are_trained(finish):
  with pytest.raises(UserError, match='dble has to be trained: leave --trained_runs'):
    find([finish('run', '--method=vanilla')], '--method=dble')
