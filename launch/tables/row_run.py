"""The runs behind a row of a table, each in a directory and a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator

from absl import flags
from etils import epath

from ..cli import entry
from ..cli import invocation
from ..cli import preemption
from ..runs.workdir import Workdir
from ..settings import choices
from ..settings import devices
from ..settings import experiment
from . import tuning
from .rows import ROWS


class RowRun:
  """The run of one row with one seed, in `<root>/<row>-<seed>`."""

  def __init__(
      self, values: flags.FlagValues, names: list[str], root: epath.Path, row: str,
      seed: int, note: str = '',
  ):
    """Describes a run.

    Args:
      values: the flags of the comparison.
      names: of those that are settings of a run.
      root: the directory of the comparison.
      row: a key of `ROWS`.
      seed: of the run.
      note: what else tells it from others, for messages.
    """
    self.row = row
    self.seed = seed
    self.title = f'{row}{note and f" {note}"}, seed {seed}'
    self.workdir = Workdir(root / f'{row}-{seed}')
    own_values = experiment.changed(
        experiment.resolved(values),
        **{'method': row, **ROWS[row], **tuning.settings(values, row), 'seed': seed})
    self.config = experiment.config(own_values, names)
    self._other_arguments = devices.arguments(values)
    if values.data_dir:
      self._other_arguments.append(f'--data_dir={values.data_dir}')
    method = choices.METHODS[own_values.method]
    size = own_values[method.num_bases].value if method.num_bases else 1
    # The runs whose trained networks this one can take.
    self.bases = [
        RowRun(values, names, root, method.base, seed + i, note) for i in range(size)
    ] if method.base else []

  @property
  def is_finished(self) -> bool:
    return self.workdir.is_finished and self.workdir.holds(self.config)

  def check(self) -> None:
    """Refuses a directory that holds anything else, before anything is trained."""
    self.workdir.check()
    self.workdir.require(self.config, 'or remove it')

  def train(self) -> None:
    """Trains in a process of its own, whose failure is reported and does not raise."""
    command = [*invocation.process('train'), *self.config.splitlines(),
               *self._other_arguments, f'--workdir={self.workdir.path}']
    if self.bases and all(base.is_finished for base in self.bases):
      paths = (str(base.workdir.path) for base in self.bases)
      command.append(f'--trained_runs={",".join(paths)}')
    process = subprocess.Popen(command)
    try:
      code = process.wait()
    except preemption.Preempted:
      process.terminate()  # It saves a checkpoint, then exits.
      process.wait()
      raise
    except BaseException:
      process.kill()
      process.wait()
      raise
    if code == preemption.EXIT_CODE:
      raise preemption.Preempted
    if code in (entry.INTERRUPTED, -signal.SIGINT):
      raise KeyboardInterrupt
    if code:
      print(f'{self.title}: failed with exit code {code}', file=sys.stderr)


def finished_runs(
    values: flags.FlagValues, names: list[str], root: epath.Path, row: str
) -> Iterator[RowRun]:
  """The finished runs of a row with these settings, whatever their seed.

  Args:
    values: the flags of the comparison.
    names: of those that are settings of a run.
    root: the directory of the comparison.
    row: a key of `ROWS`.
  """
  seeds = (path.name.removeprefix(f'{row}-') for path in root.glob(f'{row}-*'))
  for seed in sorted(int(seed) for seed in seeds if seed.isdecimal()):
    run = RowRun(values, names, root, row, seed)
    if run.is_finished:
      yield run
