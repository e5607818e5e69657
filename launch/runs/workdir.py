"""The directory of a run: what it holds, and when it may be written."""

import contextlib
import fcntl
import json
import os
import zipfile
from collections.abc import Iterator

import keras
import tensorflow as tf
from etils import epath

from dble_tf import files
from dble_tf.errors import UserError


class Workdir:
  """Paths of a run's results. A run is finished once metrics.json is there."""

  def __init__(self, path: str | os.PathLike):
    self.path = epath.Path(path)
    self.config = self.path / 'config.flags'
    self.metrics = self.path / 'metrics.json'
    self.predictions = self.path / 'predictions.npz'
    self.model = self.path / 'model.keras'
    self.checkpoints = self.path / 'checkpoints'
    self.tensorboard = self.path / 'tensorboard'
    self.reliability = self.path / 'plots' / 'reliability.png'
    self.sigma = self.path / 'plots' / 'sigma.png'
    self.export = self.path / 'export'

  @property
  def is_finished(self) -> bool:
    return self.metrics.exists()

  def holds(self, config: str) -> bool:
    """Whether the run here is of these settings."""
    return self.config.exists() and self.config.read_text() == config

  def require(self, config: str, remedy: str) -> None:
    """Refuses to go on where a run of other settings is.

    Args:
      config: the settings that are wanted.
      remedy: what to do, besides giving another directory.
    """
    if self.config.exists() and not self.holds(config):
      raise UserError(
          f'{self.path} holds {"a finished" if self.is_finished else "an unfinished"} '
          f'run of other settings (see {self.config}). Give another --workdir, '
          f'{remedy}.')

  def check(self) -> None:
    """Refuses a directory that holds something else than a run."""
    if self.config.exists() or not self.path.exists():
      return
    files.remove_incomplete(self.path)
    if any(self.path.iterdir()):
      raise UserError(
          f'{self.path} is not empty and holds no run of this program: give a new '
          'directory as --workdir.')

  @contextlib.contextmanager
  def lock(self) -> Iterator[None]:
    """Keeps other processes out of the directory, which it makes, for a while."""
    try:
      self.path.mkdir(parents=True, exist_ok=True)
    except (OSError, tf.errors.OpError) as error:
      raise UserError(
          f'{self.path} cannot be written ({error}): give another --workdir.'
      ) from error
    if '://' in os.fspath(self.path):
      print(f'{self.path} cannot be locked: see that no other process trains there.')
      yield
      return
    directory = os.open(self.path, os.O_RDONLY)
    try:
      fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
          f'Another process is at work in {self.path}: wait for it, or give another '
          '--workdir.') from None
    else:
      yield  # The end of the process, however it comes, unlocks too.
    finally:
      os.close(directory)

  def start(self, config: str) -> None:
    """Removes what an earlier run left, but its exports, and writes the settings."""
    # metrics.json goes first: without it nothing here counts as finished.
    for path in (self.metrics, self.checkpoints, self.predictions, self.model,
                 self.reliability, self.sigma, self.tensorboard):
      files.remove(path)
    self.remove_incomplete()
    with files.replacing(self.config) as temporary:
      temporary.write_text(config)

  def remove_incomplete(self) -> None:
    """Removes what killed processes have left half-written."""
    # An export's versions are in a directory for each model's name.
    for directory in (self.path, self.reliability.parent, self.export,
                      *self.export.glob('*')):
      files.remove_incomplete(directory)

  def read_metrics(self) -> dict:
    return json.loads(self.metrics.read_text())

  def require_model(self) -> None:
    """Refuses a directory without a trained model."""
    if not (self.config.exists() and self.model.exists()):
      raise UserError(
          f'There is no trained model in {self.path}: train one with '
          'python -m launch.train --flagfile=launch/digits.flags '
          f'--workdir={self.path}')
    if self.checkpoints.exists() and not self.is_finished:
      raise UserError(
          f'The run in {self.path} is not finished: the command that began it finishes '
          'it.')

  def load_model(self) -> keras.Model:
    self.require_model()
    try:
      return keras.models.load_model(self.model, compile=False)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
      raise UserError(
          f'{self.model} cannot be read ({error}): train again with '
          '--overwrite.') from error
