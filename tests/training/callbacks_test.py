import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator

from dble_tf import DBLE
from dble_tf import encoders
from dble_tf.data import load
from dble_tf.training import callbacks
from dble_tf.training import checkpoints

STEPS = 6


@pytest.fixture(scope='module')
def digits():
  return load('digits', validation_size=200)


def make_model(digits, **arguments):
  keras.utils.set_random_seed(0)
  model = DBLE(encoders.mlp(digits.image_shape, 8), 10, num_shots=2, **arguments)
  model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.25))
  return model


@pytest.fixture(scope='module')
def model(digits):
  return make_model(digits)


@pytest.fixture
def fit(digits, model):
  def run(*listeners, validates=False, model=model, **arguments):
    if validates:
      arguments.update(
          train_data=digits.train.batches(500),
          validation_data=digits.validation.batches(200))
    return model.fit(
        digits.episodes(num_shots=2, num_queries=2), steps_per_epoch=STEPS, verbose=0,
        callbacks=list(listeners), **arguments)
  return run


class Recorder(checkpoints.Checkpoints):
  """Keeps the positions that would be saved."""

  def __init__(self):
    super().__init__('nowhere')
    self.positions = []

  def save(self, model, position, metrics=None):
    self.positions.append(position[:2])


def test_checkpoints_come_after_so_many_steps_and_each_epoch(fit):
  recorder = Recorder()
  fit(callbacks.Saving(recorder, STEPS, callbacks.Every(steps=4)), epochs=2)
  # Four steps from the last one on, which an epoch's end may be.
  assert recorder.positions == [(0, 4), (1, 0), (1, 4), (2, 0)]


class Clock(keras.callbacks.Callback):
  """A minute passes before each step's end."""

  def __init__(self):
    super().__init__()
    self.now = 0.0

  def on_train_batch_end(self, batch, logs=None):
    self.now += 60.0


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(callbacks.time, 'monotonic', lambda: clock.now)
  return clock


def test_checkpoints_come_after_so_many_seconds(fit, clock):
  recorder = Recorder()
  saving = callbacks.Saving(recorder, STEPS, callbacks.Every(seconds=150))
  fit(clock, saving, epochs=2)
  # After three minutes; behind an epoch's last step validation comes first.
  assert recorder.positions == [(0, 3), (1, 0), (1, 3), (2, 0)]


def test_without_more_checkpoints_come_after_each_epoch(fit):
  recorder = Recorder()
  fit(callbacks.Saving(recorder, STEPS), epochs=2)
  assert recorder.positions == [(1, 0), (2, 0)]


def test_before_a_training_begins_there_is_nothing_to_save(tmp_path):
  store = checkpoints.Checkpoints(tmp_path / 'checkpoints')
  callbacks.Saving(store, steps_per_epoch=5).save()
  assert not store.paths()


def test_nothing_is_saved_twice(fit):
  recorder = Recorder()
  saving = callbacks.Saving(recorder, STEPS)
  fit(saving)
  saving.save()
  assert recorder.positions == [(1, 0)]


def test_before_validation_the_logs_and_metrics_of_training_are_kept(
    fit, model, tmp_path):
  store = checkpoints.Checkpoints(tmp_path)
  saving = callbacks.Saving(store, STEPS)

  class Stop(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
      raise InterruptedError

  history = fit(keras.callbacks.History()).history  # Of other weights, as a contrast.
  with pytest.raises(InterruptedError):
    fit(saving, Stop(), validates=True)
  assert float(model.prototype_loss.result()) == 0.0  # Validation has reset it.
  saving.save()
  found = store.newest()
  assert found.position[:3] == (0, STEPS, STEPS)
  found.restore_metrics(model)
  assert float(model.prototype_loss.result()) == pytest.approx(
      found.position.logs['prototype_loss'])
  assert found.position.logs.keys() == history.keys()
  assert found.position.logs['prototype_loss'] != history['prototype_loss'][-1]


def test_divergence_names_the_step_and_the_rates(fit, digits):
  class Poison(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
      if batch == 2:  # So the third step has no loss.
        kernel = self.model.theta[0]
        kernel.assign(np.nan * np.ones(kernel.shape))

  with pytest.raises(
      callbacks.Diverged,
      match=r'step 3: the loss is nan, with a learning rate of 0.1 \(theta\) and 0.25 '
            r'\(phi\)'):
    fit(Poison(), callbacks.StopOnDivergence(), model=make_model(digits))


def test_without_a_confidence_model_there_is_one_learning_rate(digits):
  model = make_model(digits, confidence_model=None)
  assert callbacks.learning_rates(model) == {'theta': pytest.approx(0.1)}


def test_weights_that_diverged_behind_a_finite_loss_are_not_saved(
    fit, model, tmp_path):
  weights = model.get_weights()

  class Poison(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      if batch == STEPS - 1:
        kernel = self.model.theta[0]
        kernel.assign(np.inf * np.ones(kernel.shape))

  store = checkpoints.Checkpoints(tmp_path / 'none')
  try:
    with pytest.raises(callbacks.Diverged, match='non-finite weights'):
      fit(callbacks.StopOnDivergence(), Poison(), callbacks.Saving(store, STEPS))
  finally:
    model.set_weights(weights)
  assert not store.paths()


def read(directory):
  events = plugin_event_accumulator.EventAccumulator(
      str(directory), tensor_size_guidance=dict.fromkeys(
          ('scalars', 'images', 'histograms'), 0))
  events.Reload()
  return {tag: {event.step: tf.make_ndarray(event.tensor_proto)
                for event in events.Tensors(tag)}
          for tag in events.Tags()['tensors']}, events


def test_curves_show_training_and_calibration(fit, digits, tmp_path):
  history = fit(
      callbacks.Curves(tmp_path, sigma_images=digits.validation.images[:20]),
      validates=True, epochs=2).history
  train, _ = read(tmp_path / 'train')
  validation, _ = read(tmp_path / 'validation')
  assert train.keys() == {
      'epoch_loss', 'epoch_prototype_loss', 'epoch_confidence_loss',
      'epoch_error_rate', 'epoch_learning_rate', 'epoch_confidence_learning_rate'}
  for tag in train.keys() - {'epoch_learning_rate', 'epoch_confidence_learning_rate'}:
    np.testing.assert_allclose(
        [train[tag][0], train[tag][1]], history[tag.removeprefix('epoch_')], rtol=1e-6)
  assert train['epoch_learning_rate'][0] == pytest.approx(0.1)
  assert train['epoch_confidence_learning_rate'][1] == pytest.approx(0.25)
  assert validation.keys() == {
      'epoch_loss', 'epoch_accuracy', 'epoch_ece', 'epoch_nll', 'reliability', 'sigma'}
  for name in ('loss', 'accuracy', 'ece', 'nll'):
    np.testing.assert_allclose(
        [validation[f'epoch_{name}'][epoch] for epoch in (0, 1)],
        history[f'val_{name}'], rtol=1e-6)
  # Left and right edges and counts: of 20 images with 8 dimensions each.
  assert validation['sigma'][1][:, 2].sum() == 20 * 8
  width, height, png = validation['reliability'][1]
  assert tf.io.decode_png(png).shape[:2] == (int(height), int(width))


def test_models_without_sigma_have_all_other_curves(fit, digits, tmp_path):
  fit(callbacks.Curves(tmp_path, sigma_images=digits.validation.images[:20]),
      model=make_model(digits, confidence_model=None), validates=True)
  train, _ = read(tmp_path / 'train')
  validation, _ = read(tmp_path / 'validation')
  assert train.keys() == {
      'epoch_loss', 'epoch_prototype_loss', 'epoch_error_rate', 'epoch_learning_rate'}
  assert validation.keys() == {
      'epoch_loss', 'epoch_accuracy', 'epoch_ece', 'epoch_nll', 'reliability'}


def test_curves_are_on_disk_before_a_checkpoint_marks_the_epoch_as_done(fit, tmp_path):
  found = []

  class Store(Recorder):
    def save(self, model, position, metrics=None):
      train, _ = read(tmp_path / 'train')
      validation, _ = read(tmp_path / 'validation')
      found.append((set(train['epoch_loss']), set(validation['epoch_loss'])))

  fit(callbacks.Curves(tmp_path), callbacks.Saving(Store(), STEPS), validates=True,
      epochs=2)
  assert found == [({0}, {0}), ({0, 1}, {0, 1})]


def test_continued_curves_have_each_epoch_once(fit, tmp_path):
  class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      if epoch == 2:
        raise InterruptedError  # So the files are not closed.

  with pytest.raises(InterruptedError):
    fit(callbacks.Curves(tmp_path), Kill(), epochs=3, validates=True)
  time.sleep(1.0)  # Processes begin in different seconds, which name their files.
  second = fit(callbacks.Curves(tmp_path, first_epoch=1), initial_epoch=1, epochs=3,
               validates=True)
  for directory, name in (('train', 'loss'), ('validation', 'val_loss')):
    curves, events = read(tmp_path / directory)
    assert [event.step for event in events.Tensors('epoch_loss')] == [0, 1, 2]
    assert [curves['epoch_loss'][epoch] for epoch in (1, 2)] == pytest.approx(
        second.history[name])


def test_steps_can_be_profiled(fit, tmp_path):
  fit(callbacks.Curves(tmp_path, profile_batch=(2, 3)))
  assert list(tmp_path.glob('train/plugins/profile/*/*.xplane.pb'))
