"""Trains, evaluates and exports a calibrated classifier.

  python -m launch.train --flagfile=launch/digits.flags

A flag file describes an experiment; flags after it change single settings. The same
command again continues a run that was killed from its last checkpoint.
"""

from absl import flags

from .cli import entry
from .cli.groups import group
from .settings import checkpointing
from .settings import devices
from .settings import experiment
from .settings import targets

FLAGS = flags.FLAGS

with group('run', FLAGS):
  flags.DEFINE_string(
      'workdir', None, 'Directory of the results (default: runs/<experiment>).')
  flags.DEFINE_bool(
      'overwrite', False, 'Replace a run of other settings, or repeat a finished one.')
  flags.DEFINE_bool(
      'deterministic', False, 'Use only operations that give the same bits every time.')
  flags.DEFINE_list(
      'trained_runs', [], 'Directories of finished vanilla runs of the same settings, '
      'whose networks are taken instead of training them: one for temperature_scaling '
      'and trust_score, --ensemble_size of different seeds for deep_ensemble.')
checkpointing.define_flags(FLAGS)
_SETTINGS = experiment.define_flags(FLAGS)
experiment.require_dataset(FLAGS)
targets.define_flags(FLAGS)
devices.define_flags(FLAGS)


def main() -> None:
  from .runs import run
  run.train(FLAGS, _SETTINGS)


def command() -> None:
  entry.run(main)


if __name__ == '__main__':
  command()
