import json

import numpy as np
import pytest

from dble_tf import evaluation
from dble_tf.errors import UserError
from launch.tables import answers
from launch.tables import comparison
from launch.tables import sweep
from launch.tables.row_run import RowRun
from launch.tables.rows import LINES
from tests.launch.tables import fake_runs
from tests.launch.tables.flag_values import parse


@pytest.fixture
def trained(monkeypatch):
  """The titles of the runs that were trained; more smoothing knows more, 0.3 fails."""
  titles = []

  def train(member):
    titles.append(member.title)
    if '=0.3' not in member.title:
      member.workdir.start(member.config, 'of-digits', None)
      skill = 3.0 if '=0.2' in member.title else 1.0
      fake_runs.write(member.workdir.path, member.seed, skill, with_parts=True)
      member.workdir.metrics.write_text('{}')

  monkeypatch.setattr(RowRun, 'train', train)
  return titles


def tries(text, *arguments):
  return sweep.parse(*parse(f'--sweep={text}', *arguments))


def run(root, text, *arguments):
  comparison.run(*parse(
      f'--workdir={root}', '--validation_size=50', f'--sweep={text}', *arguments))


def read(root):
  return json.loads((root / 'sweep.json').read_text())


def test_each_value_is_a_try():
  found = tries('label_smoothing:0.02,0.1')
  assert [one.arguments for one in found] == [
      '--label_smoothing=0.02', '--label_smoothing=0.1']
  assert [one.values.label_smoothing for one in found] == [0.02, 0.1]
  assert len({one.directory for one in found}) == 2


def test_several_flags_change_together():
  found = tries('num_shots+num_queries:1+9,5+5', '--num_shots=7')
  assert [(one.values.num_shots, one.values.num_queries) for one in found] == [
      (1, 9), (5, 5)]
  assert found[0].arguments == '--num_shots=1 --num_queries=9'
  one, = tries('synchronized_batch_norm+episode:true+leave_one_out')
  assert one.values.synchronized_batch_norm is True
  assert one.values.episode == 'leave_one_out'


@pytest.mark.parametrize('text, message', [
    ('magic:1', 'cannot vary "magic"'),
    ('seeds:1,2', 'cannot vary "seeds"'),
    ('strategy:none', 'cannot vary "strategy"'),
    ('num_shots+seed:1+2', 'cannot vary "seed"'),
    ('validation_size:10,20', 'cannot vary "validation_size"'),
    ('label_smoothing', 'has no values'),
    ('label_smoothing:', 'has no values'),
    ('label_smoothing:0.1,', '--label_smoothing= is not possible'),
    ('label_smoothing:0.1,high', '--label_smoothing=high is not possible'),
    ('label_smoothing:0.1,2', '--label_smoothing=2 is not possible'),
    ('mixup_alpha:0.1,0', '--mixup_alpha=0 is not possible.*above 0'),
    ('episode:loose', '--episode=loose is not possible'),
    ('num_shots+num_queries:1+9,5', 'has 2 flags and "5" has 1 values')])
def test_what_cannot_be_tried_is_named_before_anything_is_trained(
    text, message, trained, tmp_path):
  with pytest.raises(UserError, match=message):
    run(tmp_path / 'new', text, '--methods=label_smoothing')
  assert not trained and not (tmp_path / 'new').exists()


def test_a_flag_that_makes_no_difference_to_a_method_is_refused(trained, tmp_path):
  with pytest.raises(UserError, match='mixup is the same with --label_smoothing=0.1'):
    run(tmp_path, 'label_smoothing:0.1,0.2', '--methods=label_smoothing,mixup')
  assert not trained


def test_without_validation_images_there_is_nothing_to_choose_by(trained, tmp_path):
  with pytest.raises(UserError, match='hold some out with --validation_size'):
    run(tmp_path, 'dropout:0.1', '--methods=mc_dropout', '--validation_size=0')


def test_every_value_is_trained_in_a_directory_of_its_own(trained, tmp_path):
  text = 'learning_rate:0.1,0.2'
  run(tmp_path, text, '--methods=vanilla,dble', '--seed=4')
  expected = [f'{row} --learning_rate={rate}, seed 4'
              for row in ('vanilla', 'dble') for rate in ('0.1', '0.2')]
  assert trained == expected
  assert {path.name for path in tmp_path.iterdir()} == {
      'sweep-learning_rate-0.1', 'sweep-learning_rate-0.2', 'sweep.md', 'sweep.json'}
  config = tmp_path / 'sweep-learning_rate-0.2' / 'dble-4' / 'config.flags'
  assert '--learning_rate=0.2\n' in config.read_text()
  run(tmp_path, text, '--methods=vanilla,dble', '--seed=4')  # Nothing is missing.
  assert trained == expected


def test_there_are_several_seeds_where_they_are_asked_for(trained, tmp_path):
  run(tmp_path, 'label_smoothing:0.1', '--methods=label_smoothing', '--seeds=2')
  assert trained == ['label_smoothing --label_smoothing=0.1, seed 0',
                     'label_smoothing --label_smoothing=0.1, seed 1']
  assert read(tmp_path)['tries'][0]['seeds'] == [0, 1]


def test_the_lowest_nll_on_validation_images_is_marked(trained, tmp_path):
  run(tmp_path, 'label_smoothing:0.1,0.2', '--methods=label_smoothing')
  table = read(tmp_path)
  assert table['best'] == {'label_smoothing': '--label_smoothing=0.2'}
  assert [one['bold'] for one in table['tries']] == [[], ['nll']]
  text = (tmp_path / 'sweep.md').read_text()
  assert text.endswith('\nLowest NLL of label_smoothing: --label_smoothing=0.2\n')
  assert f'**{table["tries"][1]["mean"]["nll"]:.4f}**' in text
  assert 'test' not in text


@pytest.mark.parametrize('row, line', [
    ('vanilla', 'vanilla+T'), ('dble', 'dble'), ('dble_all', 'dble_all'),
    ('deep_ensemble', 'deep_ensemble+T'), ('trust_score', 'trust_score')])
def test_figures_are_of_validation_images_with_all_that_is_fitted(
    row, line, trained, tmp_path):
  run(tmp_path, 'weight_decay:0.1', f'--methods={row}', '--ensemble_size=1')
  directory = tmp_path / 'sweep-weight_decay-0.1' / f'{row}-0'
  predictions, _ = answers.read(directory, LINES[line], 'validation')
  arrays = np.load(directory / 'predictions.npz')
  np.testing.assert_array_equal(
      predictions['true_label'], arrays['validation_true_label'])
  expected = evaluation.figures(predictions)
  one, = read(tmp_path)['tries']
  assert one['mean'] == pytest.approx(
      {name: expected[name] for name in ('accuracy', 'ece', 'nll')})


def test_a_value_that_fails_is_reported_and_the_others_go_on(trained, tmp_path):
  with pytest.raises(UserError, match='1 of 2 runs failed: mixup --mixup_alpha=0.3'):
    run(tmp_path, 'mixup_alpha:0.3,0.4', '--methods=mixup')
  failed, finished = read(tmp_path)['tries']
  assert failed['failed'] == [0] and finished['seeds'] == [0]
  assert read(tmp_path)['best'] == {'mixup': '--mixup_alpha=0.4'}
