"""Runs on several replicas; these are virtual CPUs."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from dble_tf.data import load
from launch.runs import build
from launch.runs import methods
from launch.settings import choices
from launch.settings import devices
from launch.settings import experiment


def test_flags_choose_the_strategy():
  def strategy(*arguments):
    values = flags.FlagValues()
    devices.define_flags(values)
    values(['test', *arguments])
    return build.make_strategy(values)

  assert strategy() is tf.distribute.get_strategy()
  assert strategy(
      '--strategy=mirrored', '--num_virtual_devices=4').num_replicas_in_sync == 4


def test_a_run_on_virtual_devices_finishes(train_digits, tmp_path):
  done = train_digits(
      tmp_path / 'run', '--strategy=mirrored', '--num_virtual_devices=4',
      '--episodes_per_step=4', '--epochs=1', '--steps_per_epoch=5')
  assert done.returncode == 0, done.stderr
  results = json.loads((tmp_path / 'run' / 'metrics.json').read_text())
  assert results['replicas'] == 4
  assert results['test']['accuracy'] > 0.5  # Chance is 0.1.
  # Where it ran is not part of its identity.
  assert 'virtual' not in (tmp_path / 'run' / 'config.flags').read_text()


def test_episodes_that_cannot_be_shared_are_refused_before_any_work(
    train_digits, tmp_path):
  done = train_digits(
      tmp_path / 'run', '--num_virtual_devices=4', '--episodes_per_step=3')
  assert done.returncode == 1
  assert 'error: 4 replicas cannot share 3 episodes' in done.stderr
  assert not (tmp_path / 'run').exists()


def weights_after(method, num_replicas, steps, dataset):
  values = experiment.parse([
      f'--method={method}', '--num_shots=2', '--num_queries=2', '--episodes_per_step=4',
      '--dropout=0'])
  strategy = tf.distribute.get_strategy() if num_replicas == 1 else (
      tf.distribute.MirroredStrategy(
          [f'CPU:{i}' for i in range(num_replicas)],
          tf.distribute.ReductionToOneDevice()))
  keras.utils.set_random_seed(0)
  with strategy.scope():
    model = build.build_model(values, dataset)
  if getattr(model, 'confidence_model', None) is not None:
    model.confidence_model.dropout.rate = 0  # Replicas draw masks of their own.
  model.fit(build.make_training_data(values, dataset), steps_per_epoch=steps,
            shuffle=False, verbose=0)
  return [variable.numpy() for variable in model.trainable_variables]


@pytest.mark.slow
@pytest.mark.parametrize('steps', [10, 100])
@pytest.mark.parametrize(
    'method', [name for name in methods.METHODS if not choices.METHODS[name].base])
def test_replicas_of_each_method_end_in_the_weights_of_one(method, steps):
  dataset = load('digits', validation_size=200)
  one, two, four = (weights_after(method, n, steps, dataset) for n in (1, 2, 4))
  differences = [max(np.abs(mine - theirs).max() for mine, theirs in zip(one, several))
                 for several in (two, four)]
  print(f'\n{method}, {steps} steps, largest difference of a weight from one replica: '
        f'two {differences[0]:.1e}, four {differences[1]:.1e}')
  assert max(differences) < 1e-3
