import pytest

from dble_tf.errors import UserError
from launch.settings import choices
from launch.tables import rows


def test_all_methods_of_the_paper_are_rows_in_its_order():
  assert rows.GROUPS['all'] == [
      'vanilla', 'mc_dropout', 'temperature_scaling', 'label_smoothing', 'mixup',
      'trust_score', 'dble', 'deep_ensemble']
  assert rows.GROUPS['ablation'] == [
      'vanilla', 'vanilla_errors', 'dble_all', 'dble_errors']
  assert set(choices.METHODS) == set(rows.ROWS) - {'dble_all', 'dble_errors'}


def test_rows_have_the_order_of_the_papers_tables():
  for group, names in rows.GROUPS.items():
    assert rows.requested([group]) == names
  assert rows.requested(['dble', 'vanilla', 'dble']) == ['vanilla', 'dble']
  assert rows.requested(['mixup', 'ablation'])[:2] == ['vanilla', 'mixup']


def test_bases_come_before_the_methods_that_take_their_networks():
  order = list(rows.ROWS)
  for name, method in choices.METHODS.items():
    if method.base:
      assert order.index(method.base) < order.index(name)


@pytest.mark.parametrize('names', [['vanilla', 'magic'], []])
def test_unknown_methods_and_none_at_all_are_refused(names):
  with pytest.raises(UserError, match='--methods takes all, ablation, vanilla'):
    rows.requested(names)


def test_deep_ensembles_alone_are_not_single_models():
  assert [name for name, row in rows.ROWS.items() if not row.is_single] == [
      'deep_ensemble']
