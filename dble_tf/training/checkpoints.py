"""Checkpoints: everything that the next training step depends on, in one file each.

A file is written under another name and renamed, so it is complete or absent, on object
stores too; checksums reveal later damage.
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
  """The model or its optimizers have non-finite weights."""


class Position(NamedTuple):
  """The progress of a training run.

  Attributes:
    epoch: the current epoch, from 0.
    step: the number of steps done in it; if that is all of them, the epoch's validation
      is still to come.
    steps_per_epoch: of every epoch.
    seconds: the training time so far.
    logs: of the epoch, once all of its steps are done.
  """

  epoch: int
  step: int
  steps_per_epoch: int
  seconds: float = 0.0
  logs: Mapping[str, float] = {}

  @property
  def steps_done(self) -> int:
    """The number of updates so far: the place in the stream of batches."""
    return self.epoch * self.steps_per_epoch + self.step


class Checkpoint(NamedTuple):
  """The content of one file."""

  path: epath.Path
  position: Position
  arrays: dict[str, np.ndarray]

  def restore(self, model: keras.Model) -> None:
    """Restores the weights, seeds and optimizers of a compiled model, once.

    The arrays are released on the way: they are as large as the model.
    """
    self._assign(_weights(model))

  def restore_metrics(self, model: keras.Model) -> None:
    """Restores the state that the epoch's metrics had."""
    self._assign(_metrics(model))

  def _assign(self, variables):
    for name, variable in variables.items():
      array = self.arrays.get(name)
      if array is None or array.shape != tuple(variable.shape):
        raise UserError(
            f'{self.path} is of another model: its {name} does not match '
            f'{variable.path} of shape {tuple(variable.shape)}.')
    for name, variable in variables.items():
      variable.assign(self.arrays.pop(name))


class Checkpoints:
  """The newest checkpoints of one training run, in a directory of their own.

  Not `tf.train.CheckpointManager`: it omits the dropout seeds and metrics of Keras 3,
  which bit-exact resumption within an epoch needs, spreads a checkpoint over several
  files, and raises on a damaged one instead of falling back to the one before it.
  """

  def __init__(
      self, directory: str | os.PathLike, settings: str = '', num_kept: int = 2):
    """Names the directory; reads nothing yet.

    Args:
      directory: for these checkpoints alone; need not exist.
      settings: of the training run. Checkpoints with other settings are refused.
      num_kept: older ones are removed; more than one, in case the newest is damaged.
    """
    self.directory = epath.Path(directory)
    self._settings = settings
    self._num_kept = num_kept

  def save(
      self, model: keras.Model, position: Position,
      metrics: Mapping[str, np.ndarray] | None = None,
  ) -> epath.Path:
    """Writes a checkpoint and removes the oldest beyond `num_kept`.

    Args:
      model: compiled.
      position: the progress of its training.
      metrics: from `metric_values`, if the metrics have been updated or reset since.

    Raises:
      NotFinite: the model has non-finite weights; nothing is written.
      UserError: writing failed; earlier checkpoints are left as they are.
    """
    arrays = _values(_weights(model))
    if not all(np.isfinite(array).all() for array in arrays.values()):
      raise NotFinite('The model has non-finite weights.')
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
          + (f'{kept[-1]} is intact: once the directory can be written to, training '
             'can resume from it.' if kept else 'There is no earlier one.')) from error
    return path

  def newest(self) -> Checkpoint | None:
    """The newest intact checkpoint, if any; damaged ones are removed."""
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
            f'{path} is damaged ({error or type(error).__name__}): it is removed in '
            'favor of the checkpoint before it.', stacklevel=2)
        files.remove(path)
        continue
      return Checkpoint(path, self._position(path, arrays.pop(_FACTS, '{}')), arrays)
    return None

  def _position(self, path, text):
    facts = json.loads(str(text))
    settings = facts.pop('settings', None)
    if facts.keys() != set(Position._fields):
      raise UserError(
          f'{path} was written by another version of dble_tf: move it away, or resume '
          'with that version.')
    if settings != self._settings:
      raise UserError(
          f'{path} is of a training run with other settings: move it away, or train in '
          'another directory.')
    return Position(**facts)

  def paths(self) -> list[epath.Path]:
    """The files of all checkpoints, oldest first."""
    return sorted(self.directory.glob('step-*.npz'), key=lambda path: path.name)

  def remove(self) -> None:
    """Removes all checkpoints and their directory."""
    files.remove(self.directory)


def metric_values(model: keras.Model) -> dict[str, np.ndarray]:
  """The state of a model's metrics."""
  return _values(_metrics(model))


def _weights(model):
  """Everything that training changes except metrics, under names that do not vary.

  `model.variables` includes the states of seeds, such as dropout's.
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
