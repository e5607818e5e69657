"""SIGTERM, as machines that are taken away send it, made an exception."""

import contextlib
import signal
from collections.abc import Iterator

import keras

EXIT_CODE = 75  # Of sysexits.h: a failure for a time, try again.


class Preempted(BaseException):
  """The process was asked to end, and what calls it is in a state to be saved."""


class Preemption:
  """Raises `Preempted` at the first SIGTERM, or as soon as it is not held back."""

  def __init__(self):
    self._is_requested = False
    self._is_held = False

  @contextlib.contextmanager
  def handling(self) -> Iterator[None]:
    """Handles SIGTERM for a while."""
    inherited = signal.signal(signal.SIGTERM, self._handle)
    try:
      yield
    finally:
      signal.signal(signal.SIGTERM, inherited)

  def _handle(self, signum, frame):
    if not self._is_requested:  # Others must not disturb what saves after the first.
      self._is_requested = True
      if not self._is_held:
        raise Preempted

  def hold(self) -> None:
    self._is_held = True

  def release(self) -> None:
    self._is_held = False
    if self._is_requested:
      raise Preempted


PREEMPTION = Preemption()  # Of the process, as its signals are.


class WholeSteps(keras.callbacks.Callback):
  """Holds SIGTERM back while weights change; the last of a list of callbacks."""

  def on_train_batch_begin(self, batch, logs=None):
    PREEMPTION.hold()

  def on_train_batch_end(self, batch, logs=None):
    PREEMPTION.release()
