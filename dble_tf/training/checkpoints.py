"""Checkpoints of a training: all that its next step depends on, one file each.

A file is written beside its place and renamed, so it is complete or not there, on
object stores too; checksums tell whether it was damaged since.
"""

import io
import json
import os
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from dble_tf import files
from dble_tf.errors import UserError

_METRICS = 'metrics'
_FACTS = 'facts'


class NotFinite(UserError):
  """The model has weights that are no finite numbers."""


class Position(NamedTuple):
  """How far a training is.

  Attributes:
    epoch: the one it is in, from 0.
    step: how many steps of that epoch are done; with all of them its validation is
      still to come.
    steps_per_epoch: of every epoch.
    seconds: what it took so far.
    logs: of the epoch, once all of its steps are done.
  """

  epoch: int
  step: int
  steps_per_epoch: int
  seconds: float = 0.0
  logs: Mapping[str, float] = {}

  @property
  def steps_done(self) -> int:
    """Updates since the training began: the place in its stream of batches."""
    return self.epoch * self.steps_per_epoch + self.step


class Checkpoint(NamedTuple):
  """What one file holds."""

  path: epath.Path
  position: Position
  arrays: dict[str, np.ndarray]

  def restore(self, model: keras.Model) -> None:
    """Gives a compiled model its weights, seeds and optimizers back, once.

    The arrays are forgotten then: they are as large as the model.
    """
    self._assign(_weights(model))

  def restore_metrics(self, model: keras.Model) -> None:
    """Gives it what its metrics had summed up of the epoch."""
    self._assign(_metrics(model))

  def _assign(self, variables):
    for name, variable in variables.items():
      array = self.arrays.get(name)
      if array is None or array.shape != tuple(variable.shape):
        raise UserError(
            f'{self.path} is of another model: its {name} does not fit {variable.path} '
            f'of shape {tuple(variable.shape)}.')
    for name, variable in variables.items():
      variable.assign(self.arrays.pop(name))


class Checkpoints:
  """The newest checkpoints of one training, in a directory of their own."""

  def __init__(
      self, directory: str | os.PathLike, settings: str = '', num_kept: int = 2):
    """Looks at nothing yet.

    Args:
      directory: of these checkpoints alone; need not be there.
      settings: of the training. Checkpoints of others are refused.
      num_kept: older ones are removed; more than one, in case the newest is damaged.
    """
    self.directory = epath.Path(directory)
    self._settings = settings
    self._num_kept = num_kept

  def save(
      self, model: keras.Model, position: Position,
      metrics: Mapping[str, np.ndarray] | None = None,
  ) -> epath.Path:
    """Writes a checkpoint and removes those that are too many.

    Args:
      model: compiled.
      position: how far its training is.
      metrics: what `metric_values` gave, where the metrics went on since.

    Raises:
      NotFinite: there is a NaN in the model; nothing is written.
      UserError: it could not be written; earlier ones are left as they are.
    """
    arrays = _values(_weights(model))
    if not all(np.isfinite(array).all() for array in arrays.values()):
      raise NotFinite('There are weights that are no finite numbers.')
    facts = {**position._asdict(), 'settings': self._settings}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **(metrics or metric_values(model)),
             **{_FACTS: json.dumps(facts)})
    path = self.directory / f'step-{position.steps_done:09d}.npz'
    try:
      with files.replacing(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
      for old in self.paths()[:-self._num_kept]:
        files.remove(old)
    except (OSError, tf.errors.OpError) as error:
      kept = [path.name for path in self.paths()]
      raise UserError(
          f'The checkpoint after step {position.steps_done} cannot be written to '
          f'{self.directory} ({error}). '
          + (f'{kept[-1]} is still there: once there is room, the same command '
             'continues from it.' if kept else 'There is no earlier one.')) from error
    return path

  def newest(self) -> Checkpoint | None:
    """The newest checkpoint that is whole, if any; damaged ones are removed."""
    files.remove_incomplete(self.directory)
    for path in reversed(self.paths()):
      content = path.read_bytes()
      try:
        with np.load(io.BytesIO(content)) as file:
          arrays = dict(file)
      except MemoryError:
        raise
      except Exception as error:  # Damage can make zip and NumPy raise anything.
        warnings.warn(
            f'{path} is damaged ({error or type(error).__name__}): it is removed, and '
            'the checkpoint before it taken.')
        files.remove(path)
        continue
      return Checkpoint(path, self._position(path, arrays.pop(_FACTS, '{}')), arrays)
    return None

  def _position(self, path, text):
    facts = json.loads(str(text))
    settings = facts.pop('settings', None)
    if facts.keys() != set(Position._fields):
      raise UserError(f'{path} is of another version of this program: move it away.')
    if settings != self._settings:
      raise UserError(
          f'{path} is a checkpoint of a training with other settings: move it away, or '
          'train in another directory.')
    return Position(**facts)

  def paths(self) -> list[epath.Path]:
    """All that are there, oldest first."""
    return sorted(self.directory.glob('step-*.npz'), key=lambda path: path.name)

  def remove(self) -> None:
    """Removes all of them, and their directory."""
    files.remove(self.directory)


def metric_values(model: keras.Model) -> dict[str, np.ndarray]:
  """What the metrics of a model have summed up."""
  return _values(_metrics(model))


def _weights(model):
  """All that training changes but metrics, by names that are the same everywhere.

  `model.variables` has the states of seeds, such as dropout's, too.
  """
  groups = {'model': model.variables}
  for name in ('optimizer', 'confidence_optimizer'):
    if getattr(model, name, None) is not None:
      groups[name] = getattr(model, name).variables
  return _named(groups)


def _metrics(model):
  return _named({_METRICS: model.metrics_variables})


def _named(groups):
  return {f'{group}/{place}': variable for group, variables in groups.items()
          for place, variable in enumerate(variables)}


def _values(variables):
  return {name: keras.ops.convert_to_numpy(variable)
          for name, variable in variables.items()}
