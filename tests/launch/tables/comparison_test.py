import json

import pytest
from etils import epath

from dble_tf.errors import UserError
from launch.runs import workdir
from launch.tables import answers
from launch.tables import comparison
from launch.tables.row_run import RowRun
from tests.launch.tables import fake_runs
from tests.launch.tables.flag_values import parse


@pytest.fixture
def trained(monkeypatch):
  """The runs that were trained; those of seed 13 fail."""
  runs = []

  def train(member, fingerprint='as-it-was'):
    runs.append((member.row, member.seed))
    if member.seed != 13:
      member.workdir.start(member.config, fingerprint, None)
      fake_runs.write(
          member.workdir.path, member.seed, num_images=50, with_parts=True)
      member.workdir.metrics.write_text('{}')

  monkeypatch.setattr(RowRun, 'train', train)
  return runs


def compare(root, *arguments):
  comparison.run(*parse(f'--workdir={root}', '--validation_size=50', *arguments))


def read(root, name='table'):
  return json.loads((root / f'{name}.json').read_text())


def test_a_further_seed_joins_the_tables_of_the_others(trained, tmp_path):
  compare(tmp_path, '--methods=vanilla,dble', '--seeds=2')
  compare(tmp_path, '--methods=vanilla,dble', '--seed=4', '--seeds=1')
  assert trained == [('vanilla', 0), ('dble', 0), ('vanilla', 1), ('dble', 1),
                     ('vanilla', 4), ('dble', 4)]
  table = read(tmp_path)
  for line in ('vanilla', 'vanilla+T', 'dble'):
    assert table['lines'][line]['seeds'] == [0, 1, 4]
    assert list(table['lines'][line]['runs']) == ['0', '1', '4']
  assert 'over 3 seeds' in table['caption']
  assert '| vanilla training | 0, 1, 4 |' in (tmp_path / 'table.md').read_text()


def test_seeds_of_other_settings_stay_out_of_the_table(trained, tmp_path):
  compare(tmp_path, '--methods=dble', '--seeds=1')
  compare(tmp_path, '--methods=dble', '--seeds=1', '--seed=1', '--epochs=2')
  assert read(tmp_path)['lines']['dble']['seeds'] == [1]
  assert 'one seed' in read(tmp_path)['caption']


def test_only_failures_of_this_command_are_reported(trained, tmp_path):
  with pytest.raises(UserError, match='1 of 2 runs failed: dble, seed 13'):
    compare(tmp_path, '--methods=dble', '--seed=12', '--seeds=2')
  assert read(tmp_path)['lines']['dble']['failed'] == [13]
  compare(tmp_path, '--methods=dble', '--seed=14', '--seeds=1')
  dble = read(tmp_path)['lines']['dble']
  assert dble['seeds'] == [12, 14] and dble['failed'] == []


def test_the_table_is_there_after_each_run(trained, tmp_path, monkeypatch):
  train = RowRun.train

  def look_and_train(member):
    if member.seed == 1:
      assert read(tmp_path)['lines']['dble']['seeds'] == [0]
    train(member)

  monkeypatch.setattr(RowRun, 'train', look_and_train)
  compare(tmp_path, '--methods=dble', '--seeds=2')
  assert len(trained) == 2


def test_an_ensemble_comes_once_and_after_the_networks_that_it_lacks(trained, tmp_path):
  compare(tmp_path, '--methods=vanilla,mixup,deep_ensemble', '--seeds=2', '--seed=3',
          '--ensemble_size=3')
  assert trained == [('vanilla', 3), ('mixup', 3), ('vanilla', 4), ('vanilla', 5),
                     ('deep_ensemble', 3), ('mixup', 4)]
  lines = read(tmp_path)['lines']
  assert lines['deep_ensemble+T']['seeds'] == [3]
  assert lines['vanilla']['seeds'] == [3, 4, 5] and lines['mixup']['seeds'] == [3, 4]


def test_networks_are_trained_also_where_their_method_is_not_in_the_table(
    trained, tmp_path):
  compare(tmp_path, '--methods=trust_score', '--seeds=1')
  assert trained == [('vanilla', 0), ('trust_score', 0)]
  assert list(read(tmp_path)['lines']) == ['trust_score']


def test_a_finished_run_is_measured_once(trained, tmp_path, monkeypatch):
  measured = []

  def measure(path, line):
    measured.append((path, line))
    return answers_measure(path, line)

  answers_measure = answers.measure
  monkeypatch.setattr(answers, 'measure', measure)
  compare(tmp_path, '--methods=vanilla,mixup', '--seeds=2')
  assert len(measured) == len(set(measured)) == 8


def test_two_comparisons_do_not_share_a_directory(trained, tmp_path):
  theirs = tmp_path / '.incomplete-theirs'
  theirs.touch()
  with workdir.locked(epath.Path(tmp_path)):
    with pytest.raises(UserError, match='Another process is at work'):
      compare(tmp_path, '--methods=dble', '--seeds=1')
  assert not trained
  assert theirs.exists()  # It may be in use.
  compare(tmp_path, '--methods=dble', '--seeds=1')
  assert not theirs.exists()


def test_the_directory_is_locked_while_runs_are_trained(trained, tmp_path, monkeypatch):
  def train(member):
    with pytest.raises(UserError, match='Another process is at work'):
      with workdir.locked(epath.Path(tmp_path)):
        pass
    trained.append(member)

  monkeypatch.setattr(RowRun, 'train', train)
  with pytest.raises(UserError, match='1 of 1 runs failed'):
    compare(tmp_path, '--methods=dble', '--seeds=1')
  assert trained


def test_runs_on_different_data_do_not_share_a_table(trained, tmp_path, monkeypatch):
  compare(tmp_path, '--methods=vanilla', '--seeds=1')
  train = RowRun.train
  monkeypatch.setattr(RowRun, 'train', lambda member: train(member, 'changed'))
  with pytest.raises(UserError, match='vanilla-0 and .*dble-0 .* different data'):
    compare(tmp_path, '--methods=vanilla,dble', '--seeds=1')


def test_runs_of_all_seeds_share_their_data(trained, tmp_path, monkeypatch):
  compare(tmp_path, '--methods=vanilla', '--seeds=1')
  train = RowRun.train
  monkeypatch.setattr(RowRun, 'train', lambda member: train(member, 'changed'))
  with pytest.raises(UserError, match='vanilla-0 and .*vanilla-1 .* different data'):
    compare(tmp_path, '--methods=vanilla', '--seeds=2')


def test_the_method_is_set_by_rows_alone(trained, tmp_path):
  with pytest.raises(UserError, match='Each row sets --method itself'):
    compare(tmp_path / 'new', '--method=vanilla')
  assert not (tmp_path / 'new').exists()
