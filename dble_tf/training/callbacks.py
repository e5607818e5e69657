"""Keras callbacks for long training runs: checkpoints, divergence, TensorBoard."""

import math
import os
import time
from typing import NamedTuple

import keras
import tensorflow as tf
from etils import epath

from dble_tf import plots
from dble_tf.errors import UserError
from dble_tf.training import checkpoints
from dble_tf.training import events


class Diverged(UserError):
  """The loss or the weights are no longer finite."""


class Every(NamedTuple):
  """The interval between checkpoints, besides one at the end of each epoch."""

  steps: int | None = None
  seconds: float | None = None


class Saving(keras.callbacks.Callback):
  """Saves checkpoints, and resumes in the middle of an epoch.

  Metrics of a resumed epoch continue from their saved state. `fit` must be given the
  number of steps that remain in it: `steps_per_epoch - step` of the position.

  Attributes:
    position: the progress of training; between steps, all of it can be saved.
  """

  def __init__(
      self,
      store: checkpoints.Checkpoints,
      steps_per_epoch: int,
      every: Every | None = None,
      resumed: checkpoints.Checkpoint | None = None,
  ):
    """Starts from scratch, or from the checkpoint that the model was restored from.

    Args:
      store: where to save.
      steps_per_epoch: of a whole epoch.
      every: how often to save, besides after each epoch.
      resumed: the checkpoint that training continues from, if any.
    """
    super().__init__()
    self.position = (
        resumed.position if resumed
        else checkpoints.Position(0, 0, steps_per_epoch))
    self._store = store
    self._every = every or Every()
    self._resumed = resumed
    self._metrics = None  # Of the epoch's steps, once its validation has begun.
    self._saved = self.position if resumed else None
    self._saved_at = time.monotonic()
    self._started_at = time.monotonic() - self.position.seconds
    self._steps_before = 0  # Steps of this epoch that an earlier `fit` took.

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
    """Saves the current position, unless it is saved already."""
    if self.position == self._saved or self.model is None:  # Or `fit` has not begun.
      return
    position = self.position._replace(seconds=time.monotonic() - self._started_at)
    try:
      self._store.save(self.model, position, self._metrics)
    except checkpoints.NotFinite as error:
      raise _divergence(self.model, 'non-finite weights') from error
    self._saved = self.position
    self._saved_at = time.monotonic()


class StopOnDivergence(keras.callbacks.Callback):
  """Ends training at the first step with a non-finite loss.

  Not `keras.callbacks.TerminateOnNaN(raise_error=True)`: its RuntimeError has the batch
  within the epoch as `fit` counts it, not the global step and the learning rates.
  """

  def on_train_batch_end(self, batch, logs=None):
    loss = float(logs['loss'])
    if not math.isfinite(loss):
      raise _divergence(self.model, f'the loss is {loss}')


def _divergence(model, problem):
  rates = ' and '.join(
      f'{rate:.3g} ({name})' for name, rate in learning_rates(model).items())
  return Diverged(
      f'Training diverged in step {_number(model.optimizer.iterations)}: {problem}, '
      f'with a learning rate of {rates}.')


def learning_rates(model: keras.Model) -> dict[str, float]:
  """The current learning rates of theta and, with a confidence model, of phi."""
  optimizers = {'theta': model.optimizer,
                'phi': getattr(model, 'confidence_optimizer', None)}
  return {name: _number(optimizer.learning_rate)
          for name, optimizer in optimizers.items() if optimizer is not None}


def _number(value):
  # Variables under a strategy do not convert to numbers themselves.
  return keras.ops.convert_to_numpy(value).item()


class Curves(keras.callbacks.Callback):
  """Writes TensorBoard curves over epochs, and how well the model is calibrated.

  `log_dir`/train has the logs of training and the learning rates of both optimizers,
  `log_dir`/validation the validation logs, the reliability diagram and a histogram of
  sigma. Scalars have the tags of Keras' TensorBoard callback (`epoch_loss`, ...), the
  same in both directories, so TensorBoard overlays them.

  Not `keras.callbacks.TensorBoard`: its files can be neither extended nor continued in
  a public way.
  """

  def __init__(
      self,
      log_dir: str | os.PathLike,
      first_epoch: int = 0,
      sigma_images: tf.Tensor | None = None,
      profile_batch: tuple[int, int] | None = None,
  ):
    """Sets what to write; files are opened when training begins.

    Args:
      log_dir: the directory of the curves, new ones or those to continue.
      first_epoch: the epoch to continue at. What an earlier process wrote for it and
        for later epochs is discarded.
      sigma_images: [B, H, W, C], the images of the histogram, for models with sigma.
      profile_batch: the first and the last step to profile, counted from 1 where `fit`
        begins.
    """
    super().__init__()
    self._directory = epath.Path(log_dir)
    self._first_epoch = first_epoch
    self._sigma_images = sigma_images
    self._profile_batch = profile_batch or (0, 0)
    self._sigma = None

  def on_train_begin(self, logs=None):
    self._train, self._validation = (
        events.open_writer(self._directory / name, self._first_epoch)
        for name in ('train', 'validation'))
    self._profiler = events.Profiler(self._directory / 'train', *self._profile_batch)

  def on_train_batch_begin(self, batch, logs=None):
    self._profiler.begin_step()

  def on_train_batch_end(self, batch, logs=None):
    self._profiler.end_step()

  def on_test_end(self, logs=None):
    # Now, while the model is as it was validated: averages of weights go again.
    if self._sigma_images is not None:
      self._sigma = self.model.predict(
          self._sigma_images, batch_size=len(self._sigma_images), verbose=0
      ).get('sigma')

  def on_epoch_end(self, epoch, logs=None):
    validation = {name.removeprefix('val_'): value
                  for name, value in logs.items() if name.startswith('val_')}
    train = {name: value
             for name, value in logs.items() if not name.startswith('val_')}
    rates = learning_rates(self.model)
    train['learning_rate'] = rates['theta']
    if 'phi' in rates:
      train['confidence_learning_rate'] = rates['phi']
    with self._train.as_default(epoch):
      _write_scalars(train)
    if validation:
      with self._validation.as_default(epoch):
        _write_scalars(validation)
        self._write_calibration(f'epoch {epoch + 1}')
    # Before a checkpoint marks the epoch as done.
    self._train.flush()
    self._validation.flush()

  def _write_calibration(self, title):
    # Of all validation images: `evaluate` was the last to update the metric.
    diagram = plots.reliability_image(
        title, keras.ops.convert_to_numpy(self.model.ece.bins))
    tf.summary.image('reliability', tf.io.decode_png(diagram, channels=3)[tf.newaxis])
    if self._sigma is not None:
      tf.summary.histogram('sigma', self._sigma)

  def on_train_end(self, logs=None):
    self._profiler.stop()
    self._train.close()
    self._validation.close()


def _write_scalars(values):
  for name, value in values.items():
    tf.summary.scalar(f'epoch_{name}', value)
