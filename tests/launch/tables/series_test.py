import pytest
from etils import epath

from dble_tf.errors import UserError
from launch.tables import series
from launch.tables.row_run import RowRun
from tests.launch.tables.flag_values import parse


@pytest.fixture
def run(tmp_path):
  """(row, seed, *arguments) -> a run in its directory."""
  return lambda row, seed=0, *arguments: RowRun(
      *parse(*arguments), epath.Path(tmp_path), row, seed)


@pytest.fixture
def trained(monkeypatch):
  """The titles of the runs that were trained; those of mixup fail."""
  titles = []

  def train(member):
    titles.append(member.title)
    if member.row != 'mixup':
      member.workdir.start(member.config, 'of-digits', None)
      member.workdir.metrics.write_text('{}')

  monkeypatch.setattr(RowRun, 'train', train)
  return titles


@pytest.fixture
def write(tmp_path):
  """Writes how many runs were tried, and records it."""
  def write(tried):
    write.calls.append([run.title for run in tried])
    path = epath.Path(tmp_path) / 'result.md'
    path.write_text(f'{len(tried)} runs')
    return [path]
  write.calls = []
  return write


def titles(runs):
  return [run.title for run in runs]


def test_bases_come_once_and_first(run):
  ordered = series.with_bases([
      run('mixup'), run('trust_score', 1), run('deep_ensemble', 0, '--ensemble_size=2'),
      run('vanilla', 1)])
  assert titles(ordered) == [
      'mixup, seed 0', 'vanilla, seed 1', 'trust_score, seed 1', 'vanilla, seed 0',
      'deep_ensemble, seed 0']


def test_results_are_written_after_each_run(run, trained, write, tmp_path, capsys):
  series.train(epath.Path(tmp_path), [run('vanilla'), run('dble')], write)
  assert trained == ['vanilla, seed 0', 'dble, seed 0']
  assert write.calls == [trained[:1], trained, trained]
  output = capsys.readouterr().out
  assert '[1 of 2] vanilla, seed 0: ' in output and output.endswith('result.md\n')
  assert '\n2 runs\n' in output


def test_finished_runs_are_kept_and_failed_ones_named(run, trained, write, tmp_path):
  runs = [run('vanilla'), run('mixup'), run('dble')]
  with pytest.raises(UserError, match='1 of 3 runs failed: mixup, seed 0'):
    series.train(epath.Path(tmp_path), runs, write)
  trained.clear()
  with pytest.raises(UserError, match='1 of 3'):
    series.train(epath.Path(tmp_path), runs, write)
  assert trained == ['mixup, seed 0']


def test_a_directory_of_other_settings_is_refused_before_anything_is_trained(
    run, trained, write, tmp_path):
  series.train(epath.Path(tmp_path), [run('dble', 0, '--epochs=3')], write)
  trained.clear()
  with pytest.raises(UserError, match='other settings'):
    series.train(epath.Path(tmp_path), [run('vanilla'), run('dble')], write)
  assert trained == []


def test_runs_on_different_data_are_refused(run):
  runs = [run('vanilla'), run('dble'), run('mixup')]
  for member in runs:
    member.workdir.start(member.config, 'the same', None)
  series.require_same_data(runs)
  runs[2].workdir.record_data('other', None)
  with pytest.raises(UserError, match='vanilla-0 and .*mixup-0 .* different data'):
    series.require_same_data(runs)
  series.require_same_data([])
