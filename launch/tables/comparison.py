"""A comparison from its flags to its tables: of methods, or of values of a flag."""

import functools

from absl import flags
from etils import epath

from dble_tf.errors import UserError

from ..settings import experiment
from . import answers
from . import results
from . import rows
from . import series
from . import sweep
from . import tuning
from .row_run import finished_runs
from .row_run import RowRun


def run(values: flags.FlagValues, names: list[str]) -> None:
  """Trains the runs that are missing and writes the tables after each of them.

  Args:
    values: the flags.
    names: of those that are settings of a run.
  """
  if values['method'].present:
    raise UserError(
        'Each row sets --method itself: leave it out, and choose rows with --methods.')
  tuning.check(values, names)
  requested = rows.requested(values.methods)
  root = epath.Path(values.workdir or f'runs/{experiment.name(values)}-comparison')
  if values.sweep is not None:
    sweep.run(values, names, root, requested)
    return
  seeds = range(values.seed, values.seed + values.seeds)
  # Seed by seed, so that there is a table of all methods before all seeds are done.
  # There is one ensemble: its networks are the runs of several seeds.
  runs = series.with_bases(
      RowRun(values, names, root, row, seed) for seed in seeds for row in requested
      if row not in rows.ENSEMBLES or seed == values.seed)
  # A finished run is measured once.
  measure = functools.cache(answers.measure)

  def write(tried):
    return _write(values, names, root, requested, tried, measure)

  series.train(root, runs, write)


def _write(values, names, root, requested, tried, measure) -> list[epath.Path]:
  """Writes tables of all finished runs, and of those tried in vain."""
  found = {row: list(finished_runs(values, names, root, row)) for row in requested}
  series.require_same_data([run for runs in found.values() for run in runs])
  paths = {}
  for row, runs in found.items():
    by_seed = {run.seed: None for run in tried if run.row == row}
    by_seed.update({run.seed: run.workdir.path for run in runs})
    paths[row] = dict(sorted(by_seed.items()))
  return results.write(values, root, paths, measure)
