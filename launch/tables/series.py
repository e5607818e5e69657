"""A series of runs: those that are missing are trained, one after the other."""

from collections.abc import Callable, Iterable, Sequence

from etils import epath

from dble_tf import files
from dble_tf.errors import UserError

from ..runs import workdir
from .row_run import RowRun


def with_bases(runs: Iterable[RowRun]) -> list[RowRun]:
  """The runs, each once and after those whose networks it takes."""
  ordered = {}
  for run in runs:
    for member in (*run.bases, run):
      ordered.setdefault(member.workdir.path, member)
  return list(ordered.values())


def train(
    root: epath.Path,
    runs: Sequence[RowRun],
    write: Callable[[Sequence[RowRun]], list[epath.Path]],
) -> None:
  """Trains the runs that are not finished and writes results after each of them.

  Args:
    root: the directory of the comparison, which is locked meanwhile.
    runs: in their order.
    write: of the runs that were tried, finished or not -> the paths of the results,
      of which the first is shown in the end.
  """
  with workdir.locked(root):
    files.remove_incomplete(root)
    for run in runs:
      run.check()
    for place, run in enumerate(runs, start=1):
      title = f'\n[{place} of {len(runs)}] {run.title}:'
      if run.is_finished:
        print(title, 'already finished')
      else:
        print(title, run.workdir.path, flush=True)
        run.train()
        write(runs[:place])
    paths = write(runs)
  print(f'\n{paths[0].read_text()}')
  print('\n'.join(map(str, paths)))
  failed = [run.title for run in runs if not run.is_finished]
  if failed:
    raise UserError(
        f'{len(failed)} of {len(runs)} runs failed: {"; ".join(failed)}. Their '
        'messages are above; the same command tries them again.')


def require_same_data(runs: Sequence[RowRun]) -> None:
  """Refuses runs on different data; their splits do not depend on their seeds."""
  fingerprints = [run.workdir.read_data()['fingerprint'] for run in runs]
  for run, fingerprint in zip(runs, fingerprints):
    if fingerprint != fingerprints[0]:
      raise UserError(
          f'{runs[0].workdir.path} and {run.workdir.path} were trained on different '
          'data and cannot share a table: remove one of them, and run this command '
          'again with the right --data_dir.')
