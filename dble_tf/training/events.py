"""Files for TensorBoard: event files that continue earlier ones, and profiles."""

import time

import tensorflow as tf
from etils import epath


def open_writer(directory: epath.Path, first_step: int) -> tf.summary.SummaryWriter:
  """Opens an event file that continues the curves in a directory.

  Args:
    directory: of the curves; need not exist.
    first_step: the step to continue at. TensorBoard discards what earlier files have of
      it and of later steps.
  """
  earlier = sorted(path.name for path in directory.glob('events.out.tfevents.*'))
  if earlier:
    # TensorBoard reads files in the order of their names: this one after all earlier
    # files and before that of the new writer, which begins with a later time.
    _write_restart(directory / f'{earlier[-1]}.restart', first_step)
  return tf.summary.create_file_writer(str(directory))


def _write_restart(path, step):
  start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
  restart = tf.compat.v1.Event(step=step, wall_time=time.time(), session_log=start)
  version = tf.compat.v1.Event(wall_time=time.time(), file_version='brain.Event:2')
  with tf.io.TFRecordWriter(str(path)) as writer:
    # Twice: TensorBoard takes the first start in a directory for the run's beginning.
    for event in (version, restart, restart):
      writer.write(event.SerializeToString())


class Profiler:
  """Profiles a range of training steps."""

  def __init__(self, directory: epath.Path, first: int, last: int):
    """Sets the range.

    Args:
      directory: where TensorBoard finds the profile.
      first: the first step to profile, counted from 1; 0 for none.
      last: the last step to profile.
    """
    self._directory = directory
    self._first = first
    self._last = last
    self._step = 0
    self._trace = None  # Of the current step or the one before it, while profiling.

  def begin_step(self) -> None:
    """Starts profiling if the range begins here."""
    self._step += 1
    if self._first <= self._step <= self._last:
      if self._step == self._first:
        tf.profiler.experimental.start(str(self._directory))
      # Marks a step in the profile: _r=1, as TensorFlow's documentation has it.
      self._trace = tf.profiler.experimental.Trace('train', step_num=self._step, _r=1)
      self._trace.__enter__()

  def end_step(self) -> None:
    """Writes the profile if the range ends here."""
    if self._trace is not None:
      self._trace.__exit__(None, None, None)
      if self._step == self._last:
        self.stop()

  def stop(self) -> None:
    """Writes the profile if training ends within the range."""
    if self._trace is not None:
      tf.profiler.experimental.stop()
      self._trace = None
