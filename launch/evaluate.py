"""Computes the figures of a finished run again, from its saved model.

  python -m launch.evaluate --workdir=runs/digits
"""

from absl import flags

from .cli import entry
from .settings import finished_run

FLAGS = flags.FLAGS

finished_run.define_flags(FLAGS)


def main() -> None:
  from .runs import run
  run.evaluate(FLAGS)


def command() -> None:
  entry.run(main)


if __name__ == '__main__':
  command()
