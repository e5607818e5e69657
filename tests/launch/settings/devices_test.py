import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from dble_tf import data as datasets
from dble_tf.training import strategies
from launch import devices
from launch import experiment
from launch import methods

# While tests are collected: TensorFlow cannot divide the CPU once it is at work.
strategies.virtual_devices(4)


def parse(*arguments):
  values = flags.FlagValues()
  devices.define_flags(values)
  values(['test', *arguments])
  return values


def test_flags_choose_the_strategy():
  assert devices.make_strategy(parse()) is tf.distribute.get_strategy()
  strategy = devices.make_strategy(parse('--strategy=mirrored', '--num_virtual_devices=4'))
  assert strategy.num_replicas_in_sync == 4


def test_what_was_given_can_be_given_to_another_command():
  assert devices.arguments(parse()) == []
  given = ['--strategy=mirrored', '--num_virtual_devices=2']
  assert devices.arguments(parse(*given)) == given


def test_a_run_on_virtual_devices_finishes(train_digits, tmp_path):
  process = train_digits(
      tmp_path / 'run', '--strategy=mirrored', '--num_virtual_devices=2', '--epochs=1')
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


def weights_after(method, num_replicas, steps, dataset):
  values = flags.FlagValues()
  experiment.define_flags(values)
  values(['test', f'--method={method}', '--num_shots=2', '--num_queries=2',
          '--episodes_per_step=4', '--dropout=0',
          '--confidence_candidates=dropout=0,per_error+dropout=0'])
  strategy = tf.distribute.get_strategy() if num_replicas == 1 else (
      tf.distribute.MirroredStrategy(
          [f'CPU:{i}' for i in range(num_replicas)], tf.distribute.ReductionToOneDevice()))
  keras.utils.set_random_seed(0)
  with strategy.scope():
    model = experiment.build_model(values, dataset)
  for candidate in getattr(model, 'candidates', []):
    for layer in candidate.layers:
      if isinstance(layer, keras.layers.Dropout):
        layer.rate = 0  # Replicas draw masks of their own.
  model.fit(experiment.make_training_data(values, dataset), steps_per_epoch=steps,
            shuffle=False, verbose=0)
  return [variable.numpy() for variable in model.trainable_variables]


@pytest.mark.slow
@pytest.mark.parametrize('steps', [10, 100])
@pytest.mark.parametrize(
    'method', [name for name, method in methods.METHODS.items() if not method.base])
def test_replicas_of_each_method_end_in_the_weights_of_one(method, steps):
  dataset = datasets.load('digits', validation_size=200)
  one, two, four = (weights_after(method, n, steps, dataset) for n in (1, 2, 4))
  differences = [max(np.abs(mine - theirs).max() for mine, theirs in zip(one, several))
                 for several in (two, four)]
  print(f'\n{method}, {steps} steps, largest difference of a weight from one replica: '
        f'two {differences[0]:.1e}, four {differences[1]:.1e}')
  assert max(differences) < 1e-3


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
