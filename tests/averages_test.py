"""Averages of the weights: in place for validation and at the end of `fit`."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf import baselines
from dble_tf import ConfidenceModel
from dble_tf import DBLE
from dble_tf import encoders
from dble_tf.errors import UserError
from tests import linear

MOMENTUM = 0.5
STEPS = 3


def optimizer(use_ema=True):
  return keras.optimizers.SGD(
      0.3, momentum=0.9, use_ema=use_ema, ema_momentum=MOMENTUM)


def normalizing_encoder(synchronized=False):
  encoder = keras.Sequential([
      keras.Input(linear.IMAGE_SHAPE, dtype='uint8'), keras.layers.Rescaling(0.01),
      keras.layers.Flatten(), keras.layers.Dense(6, activation='tanh'),
      keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dense(linear.DIM)])
  if synchronized:
    encoders.synchronize_batch_norm(encoder)
  return encoder


def make_model(kind, make_encoder=normalizing_encoder, **arguments):
  keras.utils.set_random_seed(1)
  encoder = make_encoder()
  if kind == 'dble':
    model = DBLE(
        encoder, linear.NUM_CLASSES, num_shots=2,
        confidence_model=ConfidenceModel(linear.DIM, hidden_units=5, dropout=0.0))
    arguments['confidence_optimizer'] = optimizer(use_ema=False)
  else:
    model = baselines.Vanilla(encoder, linear.NUM_CLASSES)
  model.compile(optimizer(), **arguments)
  return model


def training_data(kind, epochs=1):
  """`STEPS` batches an epoch."""
  if kind == 'dble':
    return tf.data.Dataset.from_tensor_slices(
        linear.random_episodes(num_episodes=4 * STEPS * epochs)).batch(4, True)
  return tf.data.Dataset.from_tensor_slices(
      linear.class_images(16 * STEPS * epochs, seed=3)).batch(16, True)


def train_set():
  return linear.batches(*linear.class_images(40, seed=4))


def held_out():
  return linear.batches(*linear.class_images(24, seed=5))


class Weights(keras.callbacks.Callback):
  """Keeps the weights after each step and at the end of each epoch."""

  def __init__(self):
    super().__init__()
    self.steps, self.epochs = [], []

  def on_train_batch_end(self, batch, logs=None):
    self.steps.append(self.values())

  def on_epoch_end(self, epoch, logs=None):
    self.epochs.append(self.values())

  def values(self):
    return [keras.ops.convert_to_numpy(variable) for variable in (
        *self.model.trainable_variables, *self.model.moving_statistics)]


def fit(model, kind, epochs=1, validates=True, listeners=()):
  arguments = {'train_data': train_set(), 'validation_data': held_out()}
  return model.fit(
      training_data(kind, epochs), epochs=epochs, steps_per_epoch=STEPS, verbose=0,
      shuffle=False, callbacks=list(listeners),
      **(arguments if validates else {}))


def average(values):
  result = values[0]
  for value in values[1:]:
    result = MOMENTUM * result + (1 - MOMENTUM) * value
  return result


@pytest.mark.parametrize('jit_compile', [False, True])
def test_a_model_ends_with_the_average_over_the_steps(jit_compile):
  model = make_model('vanilla', linear.encoder, jit_compile=jit_compile)
  weights = Weights()
  fit(model, 'vanilla', validates=False, listeners=[weights])
  for variable, *steps in zip(model.trainable_variables, *weights.steps):
    np.testing.assert_allclose(variable, average(steps), rtol=1e-5, atol=1e-6)
    assert np.abs(variable - steps[-1]).max() > 1e-4


@pytest.mark.parametrize('jit_compile', [False, True])
def test_phi_is_averaged_as_it_was_at_each_step_of_theta(jit_compile):
  model = make_model('dble', linear.encoder, jit_compile=jit_compile)
  phi = [variable.numpy() for variable in model.phi]
  weights = Weights()
  fit(model, 'dble', validates=False, listeners=[weights])
  steps = [dict(zip([variable.path for variable in model.trainable_variables], step))
           for step in weights.steps]
  for variable in model.theta:
    np.testing.assert_allclose(
        variable, average([step[variable.path] for step in steps]), rtol=1e-5,
        atol=1e-6)
  for variable, first in zip(model.phi, phi):
    np.testing.assert_allclose(
        variable, average([first, *(step[variable.path] for step in steps[:-1])]),
        rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('kind', ['dble', 'vanilla'])
def test_training_goes_on_from_the_weights_behind_a_validation(kind):
  model, alone = make_model(kind), make_model(kind)
  weights, expected = Weights(), Weights()
  fit(model, kind, epochs=2, listeners=[weights])
  fit(alone, kind, epochs=2, validates=False, listeners=[expected])
  for mine, theirs in zip(weights.steps + weights.epochs,
                          expected.steps + expected.epochs, strict=True):
    for one, other in zip(mine, theirs, strict=True):
      np.testing.assert_array_equal(one, other)
  # Each epoch ends with what its last step gave, for a checkpoint.
  for one, other in zip(weights.epochs[0], weights.steps[STEPS - 1], strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('kind', ['dble', 'vanilla'])
def test_validation_is_of_the_averages_with_statistics_of_their_own(kind):
  model = make_model(kind)
  history = fit(model, kind, epochs=2).history
  for epoch in (1, 2):
    other = make_model(kind)
    fit(other, kind, epoch, validates=False)  # Which ends with the averages.
    other.calibrate(train_set(), held_out())
    figures = other.evaluate(held_out(), return_dict=True, verbose=0)
    for name, value in figures.items():
      assert history[f'val_{name}'][epoch - 1] == pytest.approx(value, rel=1e-4), name
  # So is the model that `fit` leaves.
  for variable, expected in zip(model.weights, other.weights, strict=True):
    np.testing.assert_allclose(variable, expected, rtol=1e-4, atol=1e-5)
  assert model.evaluate(held_out(), verbose=0)[0] == pytest.approx(
      history['val_loss'][-1], rel=1e-5)


def test_calibration_gives_the_averages_their_statistics():
  model, expected = make_model('dble'), make_model('dble')
  fit(expected, 'dble')
  fit(model, 'dble', validates=False)
  with pytest.raises(UserError, match=r'call take_averages\(train\) before represent'):
    model.calibrate(train_set(), model.represent(held_out()))
  model.calibrate(train_set(), held_out())
  for mine, theirs in zip(model.weights, expected.weights):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=mine.path)
  model.calibrate(train_set(), model.represent(held_out()))


def test_weights_that_were_restored_are_replaced_again():
  model = make_model('vanilla')
  weights = Weights()
  fit(model, 'vanilla', listeners=[weights])
  expected = model.get_weights()
  for variable, value in zip(
      (*model.trainable_variables, *model.moving_statistics), weights.epochs[-1]):
    variable.assign(value)
  model.take_averages(train_set())
  for mine, theirs in zip(model.get_weights(), expected, strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_without_averages_nothing_is_taken():
  for model in (make_model('vanilla'), baselines.Vanilla(normalizing_encoder(), 4)):
    before = model.get_weights()  # No step yet, or not compiled.
    model.take_averages(train_set())
    model.calibrate(train_set())
    with model.averaged(train_set()):
      pass
    for mine, theirs in zip(model.get_weights(), before, strict=True):
      np.testing.assert_array_equal(mine, theirs)


def test_what_is_loaded_without_its_optimizer_keeps_its_statistics(tmp_path):
  model = make_model('vanilla')
  fit(model, 'vanilla')
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert loaded.has_averages
  loaded.take_averages(train_set())
  bare = keras.models.load_model(tmp_path / 'model.keras', compile=False)
  bare.calibrate(linear.batches(*linear.some_images()))
  for mine, theirs, other in zip(model.weights, loaded.weights, bare.weights):
    np.testing.assert_array_equal(mine, other)
    np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_a_signal_while_weights_are_put_back_leaves_them_whole(monkeypatch):
  model = make_model('vanilla')
  fit(model, 'vanilla', validates=False)
  for variable in model.trainable_variables:
    variable.assign(variable + 1.0)
  before = model.get_weights()
  last = model.moving_statistics[-1]
  assign, calls = last.assign, []

  def interrupted(value):
    calls.append(value)
    if len(calls) == 2:  # Behind that of `fit_statistics`.
      raise InterruptedError
    assign(value)

  with pytest.raises(InterruptedError):
    with model.averaged(train_set()):
      monkeypatch.setattr(last, 'assign', interrupted)
      calls.append(None)
  for mine, theirs in zip(model.get_weights(), before, strict=True):
    np.testing.assert_array_equal(mine, theirs)


def test_a_loss_scaling_optimizer_averages_as_its_inner_one():
  model = make_model('dble')
  model.compile(keras.optimizers.LossScaleOptimizer(optimizer(), initial_scale=1.0),
                confidence_optimizer=optimizer(use_ema=False))
  expected = make_model('dble')
  assert not model.has_averages
  fit(model, 'dble')
  fit(expected, 'dble')
  assert model.has_averages
  for mine, theirs in zip(model.weights, expected.weights):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=mine.path)


@pytest.mark.parametrize('kind', ['dble', 'vanilla'])
def test_replicas_average_as_one(kind):
  results = []
  for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(
      ['CPU:0', 'CPU:1'], tf.distribute.ReductionToOneDevice())):
    with strategy.scope():
      model = make_model(kind, functools.partial(normalizing_encoder, True))
    history = fit(model, kind, epochs=2).history
    results.append((
        [keras.ops.convert_to_numpy(variable) for variable in (
            *model.trainable_variables, *model.moving_statistics)], history))
  (weights, history), (other_weights, other_history) = results
  for mine, theirs in zip(weights, other_weights, strict=True):
    np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=2e-5)
  for name in history:
    np.testing.assert_allclose(
        other_history[name], history[name], rtol=1e-2, err_msg=name)
