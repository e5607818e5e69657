"""Trains methods under the same settings and writes a table of their figures.

  python -m launch.compare --flagfile=launch/mnist.flags --methods=all --seeds=3

Each run has its own directory under --workdir. Finished runs are kept: after an
interruption the same command trains what is missing, and failed runs again.
"""

from absl import flags

from .cli import entry
from .cli.groups import group
from .settings import devices
from .settings import experiment

FLAGS = flags.FLAGS

with group('run', FLAGS):
  flags.DEFINE_list(
      'methods', ['all'], 'Rows of the table: "all" (Table 1 of the paper), "ablation" '
      '(Table 2), or names of rows: methods, dble_all (learns from all queries) and '
      'dble_errors (DBLE as printed).')
  flags.DEFINE_integer(
      'seeds', 3, 'Runs of each method, with --seed and the numbers after it.',
      lower_bound=1)
  flags.DEFINE_string(
      'workdir', None, 'Directory of runs and tables (default: '
      'runs/<experiment>-comparison).')
_SETTINGS = experiment.define_flags(FLAGS)
experiment.require_dataset(FLAGS)
devices.define_flags(FLAGS)


def main() -> None:
  from .tables import comparison
  comparison.run(FLAGS, _SETTINGS)


def command() -> None:
  entry.run(main)


if __name__ == '__main__':
  command()
