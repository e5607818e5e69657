"""Trains methods under the same settings and writes a table of their figures.

  python -m launch.compare --flagfile=launch/mnist.flags --methods=all --seeds=3

  python -m launch.compare --flagfile=launch/mnist.flags --methods=mixup \\
    --sweep=mixup_alpha:0.1,0.2,0.4

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
      'methods', ['all'], '"all" (Table 1 of the paper), "ablation" (Table 2), or '
      'names of methods and dble_all (learns from all queries).')
  flags.DEFINE_integer(
      'seeds', 3, 'Runs of each method, with --seed and the numbers after it; one of '
      'deep_ensemble and, unless it is given, of each value of a sweep.', lower_bound=1)
  flags.DEFINE_string(
      'sweep', None, 'Instead of a table: train with each of several values of a flag '
      'and compare figures on validation images, such as label_smoothing:0.02,0.05 or '
      'num_shots+num_queries:1+9,5+5.', allow_overwrite=False)
  flags.DEFINE_multi_string(
      'tuned', [], 'Settings of one method, and of those that take its network, where '
      'they differ from the others, such as vanilla:learning_rate=0.2; can be given '
      'several times.')
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
