"""Measures the cost of DBLE next to plain training, on this machine.

  python -m launch.benchmark --encoder=vgg11

Everything that is compared is timed in turns within one process, and medians are
reported. Data are random images, and networks have random weights. Writes
benchmark.json, benchmark.md and benchmark.png.
"""

from absl import flags

from .cli import entry
from .cli.groups import group

FLAGS = flags.FLAGS

# The experiment that each encoder is measured in.
EXPERIMENTS = {'mlp': 'mnist', 'vgg11': 'cifar10', 'thin_resnet': 'cifar100'}
PARTS = ('training', 'replicas', 'input_pipeline', 'inference', 'centers', 'startup',
         'memory', 'sizes', 'serving')

with group('run', FLAGS):
  flags.DEFINE_enum('encoder', 'vgg11', list(EXPERIMENTS), 'Encoder to measure.')
  flags.DEFINE_multi_enum(
      'parts', None, PARTS, 'Part to measure (default: all)')
  flags.DEFINE_integer('rounds', 7, 'Timings of each thing.', lower_bound=1)
  flags.DEFINE_string(
      'output', None, 'Directory of the results (default: runs/benchmark-<encoder>).')


def main() -> None:
  from .benchmarks import report
  report.run(
      EXPERIMENTS[FLAGS.encoder], FLAGS.encoder, FLAGS.parts or PARTS, FLAGS.rounds,
      FLAGS.output or f'runs/benchmark-{FLAGS.encoder}')


def command() -> None:
  entry.run(main)


if __name__ == '__main__':
  command()
