"""A comparison from its flags to its tables: trains what is missing, row by row."""

from collections.abc import Sequence

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf.errors import UserError

from ..runs import workdir
from ..settings import experiment
from . import results
from . import rows
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
  requested = rows.requested(values.methods)
  root = epath.Path(values.workdir or f'runs/{experiment.name(values)}-comparison')
  seeds = range(values.seed, values.seed + values.seeds)
  # Seed by seed, so that there is a table of all methods before all seeds are done.
  runs = [RowRun(values, names, root, row, seed) for seed in seeds for row in requested]
  with workdir.locked(root):
    files.remove_incomplete(root)
    for member in runs:
      member.check()
    for place, member in enumerate(runs, start=1):
      title = f'\n[{place} of {len(runs)}] {member.row}, seed {member.seed}:'
      if member.is_finished:
        print(title, 'already finished')
      else:
        print(title, member.workdir.path, flush=True)
        member.train()
        _write(values, names, root, requested, runs[:place])
    paths = _write(values, names, root, requested, runs)
  print(f'\n{paths[0].read_text()}')
  print('\n'.join(map(str, paths)))
  failed = [f'{member.row}, seed {member.seed}' for member in runs
            if not member.is_finished]
  if failed:
    raise UserError(
        f'{len(failed)} of {len(runs)} runs failed: {"; ".join(failed)}. Their '
        'messages are above; the same command tries them again.')


def _write(values, names, root, requested, tried) -> list[epath.Path]:
  """Writes tables of all finished runs, and of those tried in vain."""
  found = {row: list(finished_runs(values, names, root, row)) for row in requested}
  _require_same_data([member for members in found.values() for member in members])
  figures = {}
  for row, members in found.items():
    runs = {member.seed: None for member in tried if member.row == row}
    runs.update({member.seed: member.workdir.read_metrics() for member in members})
    figures[row] = dict(sorted(runs.items()))
  return results.write(values, root, figures)


def _require_same_data(runs: Sequence[RowRun]) -> None:
  """Refuses runs on different data; their splits do not depend on their seeds."""
  fingerprints = [member.workdir.read_data()['fingerprint'] for member in runs]
  for member, fingerprint in zip(runs, fingerprints):
    if fingerprint != fingerprints[0]:
      raise UserError(
          f'{runs[0].workdir.path} and {member.workdir.path} were trained on different '
          'data and cannot share a table: remove one of them, and run this command '
          'again with the right --data_dir.')
