"""Keras callbacks for long trainings: checkpoints, divergence, time, TensorBoard."""

import math
import os
import time
from typing import NamedTuple

import keras
import tensorflow as tf
from tensorflow.core.util import event_pb2

from dble_tf.training import checkpoints
from dble_tf import plots
from dble_tf.errors import UserError


class Diverged(UserError):
  """The loss or the weights are no finite numbers any more."""


class Every(NamedTuple):
  """How often to save, besides at the end of each epoch."""

  steps: int | None = None
  seconds: float | None = None


class Saving(keras.callbacks.Callback):
  """Saves checkpoints, and continues the epoch that one of them was saved in.

  Metrics of that epoch go on from what they had summed up. `fit` must be given the
  steps that are left of it: `steps_per_epoch - step` of the position.

  Attributes:
    position: how far training is; between steps all of it can be saved.
  """

  def __init__(
      self,
      store: checkpoints.Checkpoints,
      steps_per_epoch: int,
      every: Every = Every(),
      resumed: checkpoints.Checkpoint | None = None,
  ):
    """Begins at the start, or where a checkpoint is that the model was restored from.

    Args:
      store: where to save.
      steps_per_epoch: of a whole epoch.
      every: how often, besides after each epoch.
      resumed: what training continues from, if anything.
    """
    super().__init__()
    self.position = (
        resumed.position if resumed
        else checkpoints.Position(0, 0, steps_per_epoch))
    self._store = store
    self._every = every
    self._resumed = resumed
    self._metrics = None  # Those of an epoch whose validation has begun.
    self._saved = self.position if resumed else None
    self._saved_at = time.monotonic()
    self._started_at = time.monotonic() - self.position.seconds
    self._steps_before = 0  # Of this epoch, in another `fit`.

  def on_epoch_begin(self, epoch, logs=None):
    self._steps_before = self.position.step
    if self.position.step:
      self._resumed.restore_metrics(self.model)

  def on_train_batch_end(self, batch, logs=None):
    position = self.position._replace(step=self._steps_before + batch + 1)
    if position.step == position.steps_per_epoch:
      # Validation resets the metrics.
      self._metrics = checkpoints.metric_values(self.model)
      position = position._replace(
          logs={name: float(value) for name, value in logs.items()})
    self.position = position
    if position.step < position.steps_per_epoch and self._is_due():
      self.save()

  def on_epoch_end(self, epoch, logs=None):
    self.position = self.position._replace(epoch=epoch + 1, step=0, logs={})
    self._metrics = None
    self.save()

  def _is_due(self):
    before = self._saved.steps_done if self._saved else 0
    steps, seconds = self._every
    return ((steps and self.position.steps_done - before >= steps)
            or (seconds and time.monotonic() - self._saved_at >= seconds))

  def save(self) -> None:
    """Saves where training is, unless that is saved already."""
    if self.position == self._saved or self.model is None:  # Or `fit` has not begun.
      return
    position = self.position._replace(seconds=time.monotonic() - self._started_at)
    try:
      self._store.save(self.model, position, self._metrics)
    except checkpoints.NotFinite as error:
      raise _divergence(self.model, 'weights are no numbers') from error
    self._saved = self.position
    self._saved_at = time.monotonic()


class StopOnDivergence(keras.callbacks.Callback):
  """Ends training in the step whose loss is no finite number."""

  def on_train_batch_end(self, batch, logs=None):
    loss = float(logs['loss'])
    if not math.isfinite(loss):
      raise _divergence(self.model, f'the loss is {loss}')


def _divergence(model, problem):
  rates = ' and '.join(
      f'{rate:.3g} ({whose})' for whose, rate in learning_rates(model).items())
  return Diverged(
      f'Training diverged in step {_number(model.optimizer.iterations)}: {problem}, at '
      f'a learning rate of {rates}.')


def learning_rates(model: keras.Model) -> dict[str, float]:
  """The rates of theta and, if it learns beside it, of phi."""
  optimizers = {'theta': model.optimizer,
                'phi': getattr(model, 'confidence_optimizer', None)}
  return {whose: _number(optimizer.learning_rate)
          for whose, optimizer in optimizers.items() if optimizer is not None}


def _number(value):
  # Variables under a strategy are not numbers by themselves.
  return keras.ops.convert_to_numpy(value).item()


class TimeLeft(keras.callbacks.Callback):
  """Says before each epoch but the first how long training will take still."""

  def __init__(self, epochs: int, steps_per_epoch: int):
    """Knows how much there is to do.

    Args:
      epochs: up to the end of training.
      steps_per_epoch: of a whole epoch.
    """
    super().__init__()
    self._epochs = epochs
    self._steps_per_epoch = steps_per_epoch
    self._first_step = None
    self._started_at = None

  def on_train_batch_end(self, batch, logs=None):
    if self._first_step is None:  # Behind it, as it is spent on tracing.
      self._first_step = _number(self.model.optimizer.iterations)
      self._started_at = time.monotonic()

  def on_epoch_begin(self, epoch, logs=None):
    if self._first_step is not None:
      left = (self._epochs - epoch) * self._steps_per_epoch
      steps = _number(self.model.optimizer.iterations) - self._first_step
      seconds = (time.monotonic() - self._started_at) / max(steps, 1) * left
      print(f'{duration(seconds)} left')


def duration(seconds: float) -> str:
  """A time for people.

  >>> duration(5400)
  '1 h 30 min'
  """
  if seconds < 90:
    return f'{seconds:.0f} s'
  minutes = round(seconds / 60)
  return f'{minutes // 60} h {minutes % 60} min' if minutes >= 60 else f'{minutes} min'


class Curves(keras.callbacks.TensorBoard):
  """Keras' curves of each epoch, and what shows how well a model is calibrated.

  Beside the epoch's logs: the rates of both optimizers, and of the validation split a
  histogram of sigma and the reliability diagram. Steps of the curves are epochs.
  """

  def __init__(
      self, log_dir: str | os.PathLike, first_epoch: int = 0,
      sigma_images: tf.Tensor | None = None, profile_batch=0,
  ):
    """Writes to `log_dir`/train and `log_dir`/validation.

    Args:
      log_dir: where curves go, and are continued.
      first_epoch: what another process wrote from this epoch on counts no more.
      sigma_images: [B, H, W, C], whose sigma is shown, if the model has any.
      profile_batch: as in Keras, counted from where `fit` begins.
    """
    super().__init__(str(log_dir), write_graph=False, profile_batch=profile_batch)
    self._first_epoch = first_epoch
    self._sigma_images = sigma_images

  def on_train_begin(self, logs=None):
    super().on_train_begin(logs)
    # TensorBoard forgets what it has read of this step and later ones.
    restart = event_pb2.Event(
        step=self._first_epoch, wall_time=time.time(),
        session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
    for writer in (self._train_writer, self._val_writer):
      tf.raw_ops.ImportEvent(
          writer=writer._resource, event=restart.SerializeToString())

  def on_train_batch_end(self, batch, logs=None):
    super().on_train_batch_end(batch)  # Without logs: a step writes nothing.

  def on_test_end(self, logs=None):
    self._pop_writer()  # Keras' curve over steps would not fit one over epochs.

  def on_epoch_end(self, epoch, logs=None):
    super().on_epoch_end(epoch, logs)
    if any(name.startswith('val_') for name in logs or {}):
      with self._val_writer.as_default():
        # Of all validation images: evaluation was the last to use the metric.
        diagram = plots.reliability_image(
            f'epoch {epoch + 1}', keras.ops.convert_to_numpy(self.model.ece.bins))
        pixels = tf.io.decode_png(diagram, channels=3)
        tf.summary.image('reliability', pixels[tf.newaxis], step=epoch)
        if self._sigma_images is not None:
          answers = self.model.predict(
              self._sigma_images, batch_size=len(self._sigma_images), verbose=0)
          tf.summary.histogram('sigma', answers['sigma'], step=epoch)
    # Before a checkpoint says that this epoch is done.
    for writer in (self._train_writer, self._val_writer):
      writer.flush()

  def _collect_learning_rate(self, logs):
    rates = learning_rates(self.model)
    logs['learning_rate'] = rates['theta']
    if 'phi' in rates:
      logs['confidence_learning_rate'] = rates['phi']
    return logs
