"""The estimated remaining time of a training run."""

import time

import keras


class TimeLeft(keras.callbacks.Callback):
  """Prints the estimated remaining time before each epoch but the first."""

  def __init__(self, epochs: int, steps_per_epoch: int):
    """Sets the length of training.

    Args:
      epochs: the number of epochs in all.
      steps_per_epoch: of a whole epoch.
    """
    super().__init__()
    self._epochs = epochs
    self._steps_per_epoch = steps_per_epoch
    self._first_step = None
    self._started_at = None

  def on_train_batch_end(self, batch, logs=None):
    if self._first_step is None:  # The first step is left out: most of it is tracing.
      self._first_step = self._steps_done()
      self._started_at = time.monotonic()

  def on_epoch_begin(self, epoch, logs=None):
    if self._first_step is not None:
      left = (self._epochs - epoch) * self._steps_per_epoch
      steps = self._steps_done() - self._first_step
      seconds = (time.monotonic() - self._started_at) / max(steps, 1) * left
      print(f'{duration(seconds)} left')

  def _steps_done(self):
    return keras.ops.convert_to_numpy(self.model.optimizer.iterations).item()


def duration(seconds: float) -> str:
  """Formats a duration.

  >>> duration(5400)
  '1 h 30 min'
  """
  if seconds < 90:
    return f'{seconds:.0f} s'
  minutes = round(seconds / 60)
  return f'{minutes // 60} h {minutes % 60} min' if minutes >= 60 else f'{minutes} min'
