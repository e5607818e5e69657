import os
import signal

import keras
import numpy as np
import pytest
from absl import flags

from dble_tf.data import load
from dble_tf.data.episodes import EpisodeSampler
from dble_tf.errors import UserError
from dble_tf.training import callbacks
from dble_tf.training import checkpoints
from launch.cli import preemption
from launch.runs import build
from launch.runs import components
from launch.runs import fitting
from launch.runs.workdir import Workdir
from launch.settings import checkpointing
from launch.settings import experiment

EPOCHS, STEPS = 2, 3


@pytest.fixture(autouse=True)
def fresh_preemption(monkeypatch):
  """A handler that has seen no signal; there is one per process."""
  monkeypatch.setattr(preemption, 'PREEMPTION', preemption.Preemption())


def parse(*arguments):
  values = flags.FlagValues()
  experiment.define_flags(values)
  checkpointing.define_flags(values)
  values(['test', '--representation_size=8', '--num_shots=2', '--num_queries=2',
          '--episodes_per_step=2', '--batch_size=500', f'--epochs={EPOCHS}',
          f'--steps_per_epoch={STEPS}', '--checkpoint_every=1steps', *arguments])
  return values


@pytest.fixture(scope='module')
def digits():
  return load('digits', validation_size=200)


def new_model(values, digits):
  keras.utils.set_random_seed(0)
  return build.build_model(values, digits)


class Run:
  """Trains in a directory, and keeps all checkpoints."""

  def __init__(self, values, digits, path):
    self.values, self.digits = values, digits
    self.workdir = Workdir(path)
    self.store = checkpoints.Checkpoints(path / 'checkpoints', num_kept=100)

  def train(self, newest=None, model=None):
    self.model = model or new_model(self.values, self.digits)
    fitting.train(
        self.values, self.model, self.digits, self.workdir, self.store, newest)
    # As a run does then.
    train, validation = (split.batches(500) for split in (
        self.digits.train, self.digits.validation))
    self.model.take_averages(train)
    self.model.calibrate(train, validation)
    return self


@pytest.fixture
def logged(monkeypatch):
  """The logs of all epochs, as callbacks see them."""
  logs = []
  whole = callbacks.Saving.on_epoch_end

  def on_epoch_end(self, epoch, epoch_logs=None):
    logs.append((epoch, dict(epoch_logs)))
    whole(self, epoch, epoch_logs)

  monkeypatch.setattr(callbacks.Saving, 'on_epoch_end', on_epoch_end)
  return logs


def assert_same_weights(model, other):
  for mine, expected in zip(model.get_weights(), other.get_weights(), strict=True):
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-7)


def normalizing_encoder(values, dataset):
  return keras.Sequential([
      keras.Input(dataset.image_shape, dtype='uint8'),
      keras.layers.Rescaling(0.01), keras.layers.Flatten(),
      keras.layers.Dense(values.representation_size),
      keras.layers.BatchNormalization(momentum=0.9)])


@pytest.mark.parametrize('arguments', [
    [], ['--ema=0.5'], ['--ema=0.5', '--method=vanilla']])
def test_it_resumes_from_every_checkpoint_to_the_same_end(
    arguments, digits, logged, tmp_path, capsys, monkeypatch):
  if arguments:
    monkeypatch.setattr(components, 'encoder', normalizing_encoder)
  values = parse(*arguments)
  whole = Run(values, digits, tmp_path / 'whole').train()
  expected = dict(logged)
  names = [path.name for path in whole.store.paths()]
  # Within epochs, and after their validations.
  assert names == [f'step-{step:09d}.npz' for step in (1, 2, 3, 4, 5, 6)]
  for step in (1, 3, 5, 6):
    logged.clear()
    other = Run(values, digits, tmp_path / f'from {step}')
    name = f'step-{step:09d}.npz'
    other.store.directory.mkdir(parents=True)
    (other.store.directory / name).write_bytes(
        (whole.store.directory / name).read_bytes())
    other.train(other.store.newest())
    assert_same_weights(other.model, whole.model)
    for epoch, logs in logged:
      assert logs == pytest.approx(expected[epoch], rel=1e-6)
    assert [epoch for epoch, _ in logged] == list(range(step // STEPS, EPOCHS))
    if step < STEPS:  # From its first epoch on, so that it has all rows.
      assert other.workdir.history.read_text().splitlines()[0] == (
          whole.workdir.history.read_text().splitlines()[0])
      np.testing.assert_allclose(*(
          np.loadtxt(run.workdir.history, delimiter=',', skiprows=1)
          for run in (other, whole)), rtol=1e-6)
  said = capsys.readouterr().out
  assert 'Resuming after step 1: epoch 1 of 2, step 1 of 3.' in said
  assert 'Resuming after step 3: epoch 2 of 2, step 0 of 3.' in said
  assert 'Training finished; resuming evaluation and export.' in said


@pytest.mark.parametrize('arguments', [[], ['--ema=0.5']])
def test_a_run_preempted_in_validation_is_saved_and_validated_again(
    arguments, digits, logged, tmp_path, monkeypatch):
  if arguments:
    monkeypatch.setattr(components, 'encoder', normalizing_encoder)
  whole = Run(parse(*arguments), digits, tmp_path / 'whole').train()
  expected = dict(logged)
  logged.clear()
  values = parse('--checkpoint_every=1000min', *arguments)
  stopped = Run(values, digits, tmp_path / 'stopped')
  model = new_model(values, digits)

  def preempt(*arguments):
    raise preemption.Preempted

  monkeypatch.setattr(model, 'fit_centers', preempt)
  with pytest.raises(preemption.Preempted):
    stopped.train(model=model)
  assert not logged
  newest = stopped.store.newest()
  assert newest.position[:2] == (0, STEPS)
  stopped.train(newest)
  assert_same_weights(stopped.model, whole.model)
  assert [epoch for epoch, _ in logged] == [0, 1]
  for epoch, logs in logged:
    assert logs == pytest.approx(expected[epoch], rel=1e-6)


def test_sigterm_waits_for_the_end_of_a_step():
  class Terminated(keras.Sequential):
    steps = 0

    def train_step(self, data):
      os.kill(os.getpid(), signal.SIGTERM)
      self.steps += 1
      return {'loss': 0.0}

  model = Terminated([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', 'mse', run_eagerly=True)
  with preemption.PREEMPTION.handling():
    with pytest.raises(preemption.Preempted):
      model.fit(np.ones([9, 1]), np.ones([9, 1]), batch_size=1, verbose=0,
                callbacks=[fitting.WholeSteps()])
  assert model.steps == 1


def test_the_batches_of_a_resumed_run_are_those_it_has_not_seen(digits):
  for method in ('dble', 'vanilla', 'mixup', 'deep_ensemble'):
    values = parse(f'--method={method}')
    whole = build.make_training_data(values, digits).skip(2).take(2)
    rest = build.make_training_data(values, digits, start=2).take(2)
    for mine, expected in zip(rest, whole, strict=True):
      keras.tree.map_structure(np.testing.assert_array_equal, mine, expected)
  sampler = EpisodeSampler(digits.train.class_ids, 10, 4, seed=0)
  first = next(iter(build.make_training_data(parse(), digits, start=2)))
  # Two episodes a step, so the third step begins with episode 4.
  np.testing.assert_array_equal(
      first[0], digits.train.images[np.asarray(sampler(4))])


def test_divergence_says_what_to_try_and_which_checkpoint_is_kept(digits, tmp_path):
  run = Run(parse('--checkpoint_every=1steps'), digits, tmp_path)
  model = new_model(run.values, digits)
  schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 1e38])
  model.compile(keras.optimizers.SGD(schedule), keras.optimizers.SGD(0.1))
  with pytest.raises(UserError, match='Training diverged in step') as caught:
    run.train(model=model)
  message = str(caught.value)
  assert '--learning_rate' in message and '1e+38' in message
  kept = run.store.newest()
  assert str(kept.path) in message
  assert all(np.isfinite(array).all() for array in kept.arrays.values())
