import pytest

from dble_tf.errors import UserError
from launch.tables import tuning
from launch.tables.row_run import RowRun
from tests.launch.tables.flag_values import parse


def test_a_row_and_those_that_take_its_network_have_its_settings(tmp_path):
  values, names = parse(
      '--tuned=vanilla:learning_rate=0.2', '--tuned=dble:num_shots=1+num_queries=9',
      '--tuned=vanilla:weight_decay=0.001')
  tuning.check(values, names)
  vanilla = {'learning_rate': 0.2, 'weight_decay': 0.001}
  for row in ('vanilla', 'trust_score', 'deep_ensemble'):
    assert tuning.settings(values, row) == vanilla
  for row in ('dble', 'dble_all'):
    assert tuning.settings(values, row) == {'num_shots': 1, 'num_queries': 9}
  assert tuning.settings(values, 'mixup') == {}
  run = RowRun(values, names, tmp_path, 'trust_score', seed=3)
  assert '--learning_rate=0.2\n' in run.config
  assert '--learning_rate=0.2\n' in run.bases[0].config
  assert '--learning_rate=0.1\n' in RowRun(values, names, tmp_path, 'mixup', 3).config


@pytest.mark.parametrize('arguments, message', [
    (['--tuned=vanila:learning_rate=0.2'], 'form method:flag=value'),
    (['--tuned=vanilla:learning_rate'], 'form method:flag=value'),
    (['--tuned=vanilla'], 'form method:flag=value'),
    (['--tuned=vanilla:train_size=10'], 'cannot vary "train_size"'),
    (['--tuned=vanilla:strategy=none'], 'cannot vary "strategy"'),
    (['--tuned=vanilla:learning_rate=fast'], '--learning_rate=fast is not possible'),
    (['--tuned=vanilla:learning_rate=-1'], '--learning_rate=-1 is not possible'),
    (['--tuned=vanilla:learning_rate=1', '--sweep=weight_decay:0,1'], 'for tables')])
def test_what_cannot_be_tuned_is_refused(arguments, message):
  with pytest.raises(UserError, match=message):
    tuning.check(*parse(*arguments))
