"""Trains methods under the same settings and writes a table of their figures.

  python -m launch.compare --flagfile=launch/mnist.flags --methods=all --seeds=3

Every run has a directory of its own under --workdir. What is finished there is kept,
so the same command after an interruption goes on with what is missing, and failed runs
are tried again.
"""

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf.errors import UserError
from launch import comparison
from launch import devices
from launch import entry
from launch import experiment

FLAGS = flags.FLAGS

_SETTINGS = experiment.define_flags(FLAGS)
devices.define_flags(FLAGS)
flags.DEFINE_list(
    'methods', ['all'], 'Rows of the table: "all" (Table 1 of the paper), "ablation" '
    f'(Table 2), or some of {", ".join(comparison.ROWS)}.')
flags.DEFINE_integer(
    'seeds', 3, 'Runs of each method, with --seed and the numbers after it.',
    lower_bound=1)
flags.DEFINE_string(
    'workdir', None, 'Where runs and tables go; runs/<experiment>-comparison if not '
    'given.')
flags.mark_flag_as_required('dataset')


def main() -> None:
  rows = comparison.requested_rows(FLAGS)
  root = epath.Path(
      FLAGS.workdir or f'runs/{experiment.name(FLAGS)}-comparison')
  seeds = range(FLAGS.seed, FLAGS.seed + FLAGS.seeds)
  # Seed by seed, so that there is a table of all methods before all seeds are done.
  runs = [comparison.Run(FLAGS, _SETTINGS, root, row, seed)
          for seed in seeds for row in rows]
  for run in runs:
    run.check()
  files.remove_incomplete(root)
  results = {row: {} for row in rows}
  for place, run in enumerate(runs, start=1):
    title = f'\n[{place} of {len(runs)}] {run.row}, seed {run.seed}:'
    if run.is_finished:
      print(title, 'finished already')
      results[run.row][run.seed] = run.read()
    else:
      print(title, run.workdir.path, flush=True)
      run.train()
      results[run.row][run.seed] = run.read()
      comparison.write(FLAGS, root, results)

  paths = comparison.write(FLAGS, root, results)
  print(f'\n{paths[0].read_text()}')
  for path in paths:
    print(path)
  failed = [f'{run.row}, seed {run.seed}' for run in runs if not run.is_finished]
  if failed:
    raise UserError(
        f'{len(failed)} of {len(runs)} runs failed: {"; ".join(failed)}. Their messages '
        'are above; the same command tries them again.')


if __name__ == '__main__':
  entry.run(main)
