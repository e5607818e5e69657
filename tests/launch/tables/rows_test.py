import pytest

from dble_tf.errors import UserError
from launch.settings import choices
from launch.tables import rows
from tests.launch.tables.flag_values import parse


def lines(*arguments):
  values, _ = parse('--validation_size=100', *arguments)
  return rows.lines(values, rows.requested(values.methods))


def titles(*arguments):
  values, _ = parse('--validation_size=100', *arguments)
  return [line.full_title(values) for line in lines(*arguments).values()]


def test_all_methods_have_rows_but_temperature_scaling_which_is_a_line():
  assert set(choices.METHODS) == {*rows.ROWS, 'temperature_scaling'} - {'dble_all'}
  assert lines('--methods=vanilla')['vanilla+T'].has_temperature


def test_every_line_is_of_a_row_and_every_row_has_a_line():
  assert {line.row for line in rows.LINES.values()} == set(rows.ROWS)


def test_every_classifier_but_those_with_a_calibration_of_their_own_has_a_temperature():
  scaled = {line[:3] for line in rows.LINES.values() if line.has_temperature}
  alone = {name for name, line in rows.LINES.items()
           if not line.has_temperature and line[:3] not in scaled}
  assert alone == {'trust_score', 'vanilla_errors', 'dble_all', 'dble_as_printed',
                   'dble_no_held_out', 'dble'}


def test_the_papers_table_2_has_a_line_for_each_way_of_learning_confidence():
  assert list(lines('--methods=ablation')) == [
      'vanilla', 'vanilla_errors', 'dble_all', 'dble_as_printed', 'dble_no_held_out']


def test_rows_have_the_order_of_the_papers_tables():
  for group, names in rows.GROUPS.items():
    assert rows.requested([group]) == names
  assert rows.requested(['dble', 'vanilla', 'dble']) == ['vanilla', 'dble']
  assert rows.requested(['mixup', 'ablation'])[:2] == ['vanilla', 'mixup']


def test_bases_come_before_the_methods_that_take_their_networks():
  order = list(rows.ROWS)
  for name, method in choices.METHODS.items():
    if method.base and name in order:
      assert order.index(method.base) < order.index(name)


@pytest.mark.parametrize('names', [['vanilla', 'magic'], []])
def test_unknown_methods_and_none_at_all_are_refused(names):
  with pytest.raises(UserError, match='--methods takes all, ablation, vanilla'):
    rows.requested(names)


@pytest.mark.parametrize('sizes', [
    ['--validation_size=0'], ['--validation_size=50', '--threshold_size=50']])
def test_without_validation_images_there_are_no_temperatures(sizes):
  values, _ = parse(*sizes)
  assert not any(line.has_temperature
                 for line in rows.lines(values, rows.ROWS).values())


def test_titles_say_what_was_tuned():
  assert titles('--methods=label_smoothing', '--label_smoothing=0.05') == [
      'label smoothing (0.05)', 'label smoothing (0.05) + T']
  assert titles('--methods=mixup', '--mixup_alpha=0.4')[0] == 'mixup (alpha 0.4)'
  assert titles('--methods=mc_dropout', '--dropout=0.3')[0] == (
      'MC-dropout (on the representation, rate 0.3)')
  assert titles('--methods=deep_ensemble', '--ensemble_size=3')[0] == (
      'deep ensemble (of 3)')


@pytest.mark.parametrize('arguments, episode', [
    (['--num_shots=1', '--num_queries=9', '--episodes_per_step=2'],
     '1 support + 9 queries, 2 episodes'),
    (['--num_shots=5', '--num_queries=1'], '5 supports + 1 query'),
    (['--num_shots=10', '--num_queries=10', '--episode=leave_one_out'],
     'leave-one-out, 20 images a class'),
    (['--squared_scale=0.1'],
     '10 supports + 10 queries, squared distances times 0.1'),
    (['--episode_smoothing=0.1'],
     '10 supports + 10 queries, targets smoothed by 0.1')])
def test_titles_of_dble_name_the_episodes(arguments, episode):
  assert titles('--methods=dble', *arguments) == [
      f"prototypical (DBLE's encoder; {episode})",
      f"prototypical (DBLE's encoder; {episode}) + T",
      f'DBLE, sigma as printed ({episode})', f'DBLE, no held-out data ({episode})',
      f'DBLE ({episode})']


def test_deep_ensembles_alone_are_not_single_models():
  assert {line.row for line in rows.LINES.values() if not line.is_single} == {
      'deep_ensemble'}
