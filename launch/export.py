"""Exports the model of a finished run once more, as a new version for TF Serving.

  python -m launch.export --workdir=runs/digits --target_risk=0.02
"""

from absl import flags

from .cli import entry
from .settings import finished_run
from .settings import targets

FLAGS = flags.FLAGS

finished_run.define_flags(FLAGS)
targets.define_flags(FLAGS)


def main() -> None:
  from .runs import run
  run.export(FLAGS)


def command() -> None:
  entry.run(main)


if __name__ == '__main__':
  command()
