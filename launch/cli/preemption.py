"""SIGTERM, as sent to machines that are about to be taken away, as an exception."""

import contextlib
import signal
from collections.abc import Iterator

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again.


class Preempted(BaseException):
  """The process was asked to end, and its state may be saved now."""


class Preemption:
  """Raises `Preempted` at the first SIGTERM, delayed while it is held."""

  def __init__(self):
    self._is_requested = False
    self._is_held = False

  @contextlib.contextmanager
  def handling(self) -> Iterator[None]:
    """Handles SIGTERM inside the block."""
    inherited = signal.signal(signal.SIGTERM, self._handle)
    try:
      yield
    finally:
      signal.signal(signal.SIGTERM, inherited)

  def _handle(self, signum, frame):
    if not self._is_requested:  # Later signals must not disturb saving.
      self._is_requested = True
      if not self._is_held:
        raise Preempted

  def hold(self) -> None:
    """Delays the exception, while weights change."""
    self._is_held = True

  def release(self) -> None:
    """Raises the exception that was delayed, if any."""
    self._is_held = False
    if self._is_requested:
      raise Preempted


PREEMPTION = Preemption()  # One per process, as signals are.
