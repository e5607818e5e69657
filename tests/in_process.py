"""Commands within this process: one of their own takes seconds to start."""

import contextlib
import io
import subprocess
from collections.abc import Callable
from unittest import mock

from absl import flags

from launch.cli import entry
from launch.cli import flagfiles
from launch.cli import preemption
from launch.settings import checkpointing
from launch.settings import devices
from launch.settings import experiment
from launch.settings import finished_run
from launch.settings import targets


def train(*arguments: str) -> subprocess.CompletedProcess:
  """Runs `train`; not with --deterministic, which cannot be taken back."""
  from launch.runs import run
  values = flags.FlagValues()
  flags.DEFINE_string('workdir', None, '', flag_values=values)
  flags.DEFINE_bool('overwrite', False, '', flag_values=values)
  flags.DEFINE_bool('deterministic', False, '', flag_values=values)
  flags.DEFINE_list('trained_runs', [], '', flag_values=values)
  names = experiment.define_flags(values)
  for settings in (checkpointing, targets, devices):
    settings.define_flags(values)
  return _run(values, arguments, lambda: run.train(values, names))


def evaluate(*arguments: str) -> subprocess.CompletedProcess:
  """Runs `evaluate`."""
  from launch.runs import run
  values = flags.FlagValues()
  finished_run.define_flags(values)
  return _run(values, arguments, lambda: run.evaluate(values))


def export(*arguments: str) -> subprocess.CompletedProcess:
  """Runs `export`."""
  from launch.runs import run
  values = flags.FlagValues()
  finished_run.define_flags(values)
  targets.define_flags(values)
  return _run(values, arguments, lambda: run.export(values))


def _run(
    values: flags.FlagValues, arguments: tuple[str, ...], main: Callable[[], None]
) -> subprocess.CompletedProcess:
  """The exit code and what was printed; bugs are raised."""
  values(['test', *flagfiles.expand(arguments)])
  out, err = io.StringIO(), io.StringIO()
  # SIGTERM ends a process, so that its handler serves one command.
  with (mock.patch.object(preemption, 'PREEMPTION', preemption.Preemption()),
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
    code = entry.guarded(main)
  return subprocess.CompletedProcess(
      list(arguments), code or 0, out.getvalue(), err.getvalue())
