"""Trains methods under the same settings and writes a table of their figures.

  python -m launch.compare --flagfile=launch/mnist.flags --methods=all --seeds=3

Every run has a directory of its own under --workdir. What is finished there is kept,
so the same command after an interruption goes on with what is missing, and failed runs
are tried again.
"""

import json
import signal
import subprocess
import sys

from absl import flags
from etils import epath

from dble_tf import atomic
from dble_tf import plots
from dble_tf.errors import UserError
from launch import entry
from launch import experiment
from launch import methods
from launch import paper
from launch import table
from launch.workdir import Workdir

FLAGS = flags.FLAGS

# The rows that a table can have: title and settings.
ROWS = {
    'vanilla': ('vanilla training', {}),
    'mc_dropout': ('MC-dropout', {}),
    'temperature_scaling': ('temperature scaling', {}),
    'label_smoothing': ('label smoothing', {}),
    'mixup': ('mixup', {}),
    'trust_score': ('TrustScore', {}),
    'vanilla_errors': (
        'learning from errors in vanilla training', {'confidence_training': 'errors'}),
    'prototypical': ('DBLE without confidence model', {}),
    'dble_all': (
        'DBLE, calibration learned from all samples',
        {'method': 'dble', 'confidence_training': 'all'}),
    'dble': ('DBLE', {'confidence_training': 'errors'}),
    'deep_ensemble': ('deep ensemble', {}),
}
GROUPS = {
    'all': [row for row in ROWS if row not in ('vanilla_errors', 'dble_all')],
    'ablation': ['vanilla', 'vanilla_errors', 'dble_all', 'dble'],
}

_SETTINGS = experiment.define_flags(FLAGS)
flags.DEFINE_list(
    'methods', ['all'], 'Rows of the table: "all" (Table 1 of the paper), "ablation" '
    f'(Table 2), or some of {", ".join(ROWS)}.')
flags.DEFINE_integer(
    'seeds', 3, 'Runs of each method, with --seed and the numbers after it.',
    lower_bound=1)
flags.DEFINE_string(
    'workdir', None, 'Where runs and tables go; runs/<experiment>-comparison if not '
    'given.')
flags.mark_flag_as_required('dataset')


def main() -> None:
  rows = requested_rows()
  root = Workdir(FLAGS.workdir or f'runs/{experiment.name(FLAGS)}-comparison').path
  seeds = range(FLAGS.seed, FLAGS.seed + FLAGS.seeds)
  # Seed by seed, so that there is a table of all methods before all seeds are done.
  runs = [Run(root, row, seed) for seed in seeds for row in rows]
  for run in runs:
    run.check()
  atomic.remove_incomplete(root)
  results = {row: {} for row in rows}
  for place, run in enumerate(runs, start=1):
    print(f'\n[{place} of {len(runs)}] {run.row}, seed {run.seed}: ', end='')
    was_finished = run.is_finished
    print('finished already' if was_finished else run.workdir.path, flush=True)
    if not was_finished:
      run.train()
    results[run.row][run.seed] = run.read()
    if not was_finished:
      write(root, results)

  paths = write(root, results)
  print(f'\n{paths[0].read_text()}')
  for path in paths:
    print(path)
  failed = [f'{run.row}, seed {run.seed}' for run in runs if not run.is_finished]
  if failed:
    raise UserError(
        f'{len(failed)} of {len(runs)} runs failed: {"; ".join(failed)}. Their messages '
        'are above; the same command tries them again.')


def requested_rows() -> list[str]:
  """The rows of --methods, each once, bases before what builds on them."""
  for name in ('method', 'confidence_training'):
    if FLAGS[name].present:
      raise UserError(
          f'--{name} is set for each row here: leave it out, and choose rows with '
          '--methods.')
  asked = {row for name in FLAGS.methods for row in GROUPS.get(name, [name])}
  unknown = sorted(asked - set(ROWS))
  if unknown or not asked:
    raise UserError(
        f'There is no method "{", ".join(unknown)}": --methods takes '
        f'{", ".join([*GROUPS, *ROWS])}.')
  return [row for row in ROWS if row in asked]


class Run:
  """One row's run with one seed."""

  def __init__(self, root: epath.Path, row: str, seed: int):
    self.row = row
    self.seed = seed
    self.workdir = Workdir(root / f'{row}-{seed}')
    _, settings = ROWS[row]
    values = experiment.changed(
        FLAGS, **{'method': row, **settings, 'seed': seed})
    self.config = experiment.config(values, _SETTINGS)
    # The run whose network can be taken.
    base = methods.METHODS[values.method].base
    self.base = Run(root, base, seed) if base else None

  @property
  def is_finished(self) -> bool:
    return self.workdir.is_finished and self.workdir.holds(self.config)

  def check(self) -> None:
    """Refuses a directory with another run before anything is trained."""
    self.workdir.check()
    if self.workdir.is_finished and not self.is_finished:
      raise UserError(
          f'{self.workdir.path} holds a finished run of other settings: give another '
          '--workdir, or remove it.')

  def train(self) -> None:
    """Trains in a process of its own, so that a crash there ends nothing here."""
    command = [sys.executable, '-m', 'launch.train', *self.config.split('\n')[:-1],
               f'--workdir={self.workdir.path}']
    if self.base is not None and self.base.is_finished:
      command.append(f'--trained_run={self.base.workdir.path}')
    code = subprocess.run(command).returncode
    if code in (entry.INTERRUPTED, -signal.SIGINT):
      raise KeyboardInterrupt
    if code:
      print(f'{self.row}, seed {self.seed}: failed with exit code {code}',
            file=sys.stderr)

  def read(self) -> dict | None:
    """What metrics.json holds, or None where there is none."""
    return self.workdir.read_metrics() if self.is_finished else None


def write(
    root: epath.Path, results: dict[str, dict[int, dict | None]]
) -> list[epath.Path]:
  """Writes the tables and the plot of the runs so far, and returns their paths.

  Args:
    root: where to.
    results: row -> seed -> what metrics.json holds, or None where the run failed.
  """
  baseline = [run for run in results.get('vanilla', {}).values() if run is not None]
  reported = paper.figures(FLAGS.dataset, FLAGS.encoder)
  rows = {
      row: table.make_row(
          ROWS[row][0], runs, baseline, reported.get(row, {}),
          is_single=row != 'deep_ensemble')
      for row, runs in results.items() if runs}
  caption = (
      f'{experiment.name(FLAGS)}: test figures on {FLAGS.dataset} with {FLAGS.encoder}, '
      f'{FLAGS.epochs * FLAGS.steps_per_epoch:,} steps, mean and standard deviation '
      'over runs with different seeds; time of training, validations included, and '
      'number of trained parameters relative to vanilla training.')
  stem = 'ablation' if FLAGS.methods == ['ablation'] else 'table'
  texts = {
      'md': table.markdown(list(rows.values()), caption),
      'tex': table.latex(list(rows.values()), caption),
      'json': json.dumps({
          'caption': caption,
          'rows': {row: line._asdict() for row, line in rows.items()},
          'runs': results}, indent=2) + '\n',
  }
  paths = [root / f'{stem}.{extension}' for extension in texts]
  for path, text in zip(paths, texts.values()):
    with atomic.replacing(path) as temporary:
      temporary.write_text(text)
  shown = {line.title: line for line in rows.values() if line.mean}
  if shown:
    paths.append(root / f'{stem}.png')
    plots.comparison(paths[-1], {
        title: {name: (line.mean[name], line.deviation.get(name, 0.0))
                for name in ('accuracy', 'ece', 'nll')}
        for title, line in shown.items()})
  return paths


if __name__ == '__main__':
  entry.run(main)
