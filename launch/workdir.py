"""The directory of a run: what it holds, and when it may be written."""

import json
import os

from absl import flags
from etils import epath

from dble_tf import atomic
from dble_tf.errors import UserError


class Workdir:
  """Paths of a run's results. A run is finished once metrics.json is there."""

  def __init__(self, path: str | os.PathLike):
    self.path = epath.Path(path)
    self.config = self.path / 'config.flags'
    self.metrics = self.path / 'metrics.json'
    self.predictions = self.path / 'predictions.npz'
    self.model = self.path / 'model.keras'
    self.tensorboard = self.path / 'tensorboard'
    self.reliability = self.path / 'plots' / 'reliability.png'
    self.export = self.path / 'export'

  @property
  def is_finished(self) -> bool:
    return self.metrics.exists()

  def holds(self, config: str) -> bool:
    """Whether the run here is of these settings."""
    return self.config.exists() and self.config.read_text() == config

  def start(self, config: str) -> None:
    """Removes what an earlier run left and writes down the settings."""
    # metrics.json goes first: without it nothing here counts as finished.
    for path in (self.metrics, self.predictions, self.model, self.tensorboard,
                 self.reliability.parent, self.export):
      atomic.remove(path)
    with atomic.replacing(self.config) as temporary:
      temporary.write_text(config)

  def read_metrics(self) -> dict:
    if not self.is_finished:
      raise UserError(
          f'There is no finished run in {self.path}: train one with '
          f'python -m launch.train --workdir={self.path}')
    return json.loads(self.metrics.read_text())


def config_text(values: flags.FlagValues, names: list[str]) -> str:
  """The settings of a run as a flagfile."""
  lines = (values[name].serialize() for name in names)
  return ''.join(f'{line}\n' for line in lines if line)
