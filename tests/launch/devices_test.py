import json

import pytest
import tensorflow as tf
from absl import flags

from dble_tf import distribution
from launch import devices

# While tests are collected: TensorFlow cannot divide the CPU once it is at work.
distribution.virtual_devices(4)


def parse(*arguments):
  values = flags.FlagValues()
  devices.define_flags(values)
  values(['test', *arguments])
  return values


def test_flags_choose_the_strategy():
  assert devices.make_strategy(parse()) is tf.distribute.get_strategy()
  strategy = devices.make_strategy(parse('--strategy=mirrored', '--num_virtual_devices=4'))
  assert strategy.num_replicas_in_sync == 4


def test_a_run_on_virtual_devices_finishes(train_digits, tmp_path):
  process = train_digits(
      tmp_path / 'run', '--strategy=mirrored', '--num_virtual_devices=2', '--epochs=1',
      '--method=prototypical')
  assert process.returncode == 0, process.stderr
  results = json.loads((tmp_path / 'run' / 'metrics.json').read_text())
  assert results['replicas'] == 2
  assert results['test']['accuracy'] > 0.5  # Chance is 0.1.
  # Where it ran is no part of what it is.
  assert 'virtual' not in (tmp_path / 'run' / 'config.flags').read_text()


def test_episodes_that_do_not_split_are_refused_before_any_work(train_digits, tmp_path):
  process = train_digits(
      tmp_path / 'run', '--num_virtual_devices=2', '--episodes_per_step=3')
  assert process.returncode == 1
  assert 'error: 2 replicas cannot have equal parts of 3' in process.stderr
  assert 'Traceback' not in process.stderr
  assert not (tmp_path / 'run').exists()


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
