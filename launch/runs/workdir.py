"""The directory of a run: its files, its lock, and which run it holds."""

import contextlib
import fcntl
import json
import os
import zipfile
from collections.abc import Iterator

import keras
import tensorflow as tf
from etils import epath

import dble_tf  # noqa: F401 (registers the classes of saved models)
from dble_tf import files
from dble_tf.errors import first_line
from dble_tf.errors import UserError

from ..cli import invocation


class Workdir:
  """Paths of a run's results. A run is finished once metrics.json exists.

  A run is identified by its settings (config.flags) and by the content of its data
  (the fingerprint in data.json), not by where the data are.
  """

  def __init__(self, path: str | os.PathLike):
    self.path = epath.Path(path)
    self.config = self.path / 'config.flags'
    self.data = self.path / 'data.json'
    self.metrics = self.path / 'metrics.json'
    self.predictions = self.path / 'predictions.npz'
    self.model = self.path / 'model.keras'
    self.checkpoints = self.path / 'checkpoints'
    self.tensorboard = self.path / 'tensorboard'
    self.history = self.path / 'history.csv'
    self.reliability = self.path / 'plots' / 'reliability.png'
    self.sigma = self.path / 'plots' / 'sigma.png'
    self.export = self.path / 'export'

  @property
  def is_finished(self) -> bool:
    return self.metrics.exists()

  def holds(self, config: str) -> bool:
    """True if the run here has these settings."""
    return self.config.exists() and self.config.read_text() == config

  def require(self, config: str, remedy: str) -> None:
    """Refuses a directory that holds a run of other settings.

    Args:
      config: the settings that are wanted.
      remedy: what to do, besides choosing another directory.
    """
    if self.config.exists() and not self.holds(config):
      raise UserError(
          f'{self.path} holds {"a finished" if self.is_finished else "an unfinished"} '
          f'run of other settings (see {self.config}). Choose another --workdir, '
          f'{remedy}.')

  def require_data(self, fingerprint: str, remedy: str) -> None:
    """Refuses to continue, or evaluate, a run on other data than it began with."""
    if self.data.exists() and self.read_data()['fingerprint'] != fingerprint:
      raise UserError(
          f'The data differ from those that the run in {self.path} was trained on: '
          f'other images, labels or splits. Pass its data as --data_dir, {remedy}.')

  def check(self) -> None:
    """Refuses a directory that holds something other than a run."""
    if self.config.exists() or not self.path.exists():
      return
    if any(not files.is_incomplete(path) for path in self.path.iterdir()
           if path != self.data):
      raise UserError(
          f'{self.path} is not empty and does not hold a run: choose a new directory '
          'as --workdir.')

  def lock(self) -> contextlib.AbstractContextManager[None]:
    """Keeps other processes out of the directory, which is created."""
    return locked(self.path)

  def start(self, config: str, fingerprint: str, data_dir: str | None) -> None:
    """Removes an earlier run, but for its exports, and records the new one."""
    # metrics.json goes first: without it nothing here counts as finished.
    for path in (self.metrics, self.checkpoints, self.predictions, self.model,
                 self.reliability, self.sigma, self.tensorboard, self.history):
      files.remove(path)
    self.remove_incomplete()
    self.record_data(fingerprint, data_dir)
    with files.replacing(self.config) as temporary:
      temporary.write_text(config)

  def record_data(self, fingerprint: str, data_dir: str | None) -> None:
    """Records the content of the data, and where they are for now."""
    with files.replacing(self.data) as temporary:
      temporary.write_text(json.dumps(
          {'fingerprint': fingerprint, 'data_dir': data_dir}, indent=2) + '\n')

  def remove_incomplete(self) -> None:
    """Removes half-written files of killed processes; the directory must be locked."""
    # An export has a directory for each model name, with the versions in it.
    for directory in (self.path, self.reliability.parent, self.export,
                      *self.export.glob('*')):
      files.remove_incomplete(directory)

  def read_metrics(self) -> dict:
    return json.loads(self.metrics.read_text())

  def read_data(self) -> dict:
    """The fingerprint of the data, and where they were; neither where unknown."""
    if not self.data.exists():
      return {'fingerprint': None, 'data_dir': None}
    return json.loads(self.data.read_text())

  def require_model(self) -> None:
    """Refuses a directory without a trained model."""
    if not (self.config.exists() and self.model.exists()):
      raise UserError(
          f'There is no trained model in {self.path}: train one with '
          f'{invocation.typed("train")} --flagfile=digits --workdir={self.path}')
    if self.checkpoints.exists() and not self.is_finished:
      raise UserError(
          f'The run in {self.path} is not finished: the command that began it finishes '
          'it.')

  def load_model(self) -> keras.Model:
    self.require_model()
    try:
      return keras.models.load_model(self.model, compile=False)
    except UserError as error:  # Says what to do.
      raise UserError(f'{self.model} cannot be loaded. {error}') from error
    except (ValueError, TypeError, OSError, zipfile.BadZipFile) as error:
      # Keras appends advice and the whole configuration.
      reason, *_ = first_line(error).split('. ')
      raise UserError(
          f'{self.model} cannot be loaded ({reason}): train again with --overwrite, or '
          'use the version of this package that saved it.') from error


@contextlib.contextmanager
def locked(path: epath.Path) -> Iterator[None]:
  """Locks a directory against other processes, creating it first."""
  try:
    path.mkdir(parents=True, exist_ok=True)
  except (OSError, tf.errors.OpError) as error:
    raise UserError(
        f'{path} cannot be written ({error}): choose another --workdir.') from error
  if '://' in os.fspath(path):
    print(f'{path} cannot be locked: make sure that no other process writes there.')
    yield
    return
  directory = os.open(path, os.O_RDONLY)
  try:
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise UserError(
        f'Another process is at work in {path}: wait for it, or choose another '
        '--workdir.') from None
  else:
    yield  # The end of the process, however it comes, releases the lock too.
  finally:
    os.close(directory)
