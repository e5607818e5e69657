"""Measures what an export of DBLE costs beside one of its encoder alone.

  python -m launch.benchmark_serving

For each experiment: size and load time of the export, and requests per second and
latencies over gRPC on this machine, where requests for the export and for the bare
encoder take turns. Networks have random weights, which cost as much as trained ones.
Prints a table and writes benchmark_serving.json and benchmark_serving.md.
"""

import json
import sys
import tempfile
import time

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf.serving import warm_up
from dble_tf.errors import UserError
from launch import entry
from launch import measurements
from launch import random_data
from launch import timing

FLAGS = flags.FLAGS

flags.DEFINE_list('experiments', ['digits', 'mnist', 'cifar10'],
                  'Flag files of launch/, without their ending.')
flags.DEFINE_integer('repetitions', 7, 'How often each thing is timed.', lower_bound=1)
flags.DEFINE_string('results', 'runs/benchmark-serving', 'Directory of the results.')


def main() -> None:
  if not warm_up.is_possible():
    raise UserError('This needs tensorflow-serving-api: pip install -r '
                    'requirements-serving.txt')
  from launch import serving_measurements  # Which needs it, too.

  directory = epath.Path(FLAGS.results)
  results = {'rounds': FLAGS.repetitions, 'date': time.strftime('%Y-%m-%d'),
             'machine': timing.machine(), 'experiments': {}}
  for name in FLAGS.experiments:
    print(f'{time.strftime("%H:%M:%S")} {name}', file=sys.stderr, flush=True)
    values = measurements.read_flags(f'launch/{name}.flags')
    dataset = random_data.make(values.dataset, 500)
    with tempfile.TemporaryDirectory() as temporary:
      results['experiments'][name] = serving_measurements.measure(
          values, dataset, FLAGS.repetitions, epath.Path(temporary))
    write(directory, results)
  print(f'\n{table(results)}\nresults in {directory}')


def write(directory: epath.Path, results: dict) -> None:
  """Writes what has been measured so far."""
  for name, content in (
      ('benchmark_serving.json', json.dumps(results, indent=2) + '\n'),
      ('benchmark_serving.md', table(results))):
    with files.replacing(directory / name) as temporary:
      temporary.write_text(content)


def table(results: dict) -> str:
  """The results as a table in Markdown, with the encoder's figures in brackets."""
  lines = ['| experiment | size (MB) | load (s) | batch | requests/s | p50 (ms) '
           '| p99 (ms) | time to that of the encoder |', '|---' * 8 + '|']
  for name, measured in results['experiments'].items():
    size, load = (_pair(measured[key], scale) for key, scale in (
        ('bytes', 1e-6), ('load_seconds', 1.0)))
    for batch, part in measured['requests'].items():
      cells = [name, size, load, batch,
               _pair(part['per_second'], 1.0, 0), _pair(part['p50'], 1e3),
               _pair(part['p99'], 1e3), f'{part["to_encoder"]:.3f}']
      lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines) + (
      '\n\nDBLE, in brackets its encoder alone; '
      f'{results["rounds"]} rounds, {results["date"]}, {results["machine"]}\n')


def _pair(values, scale, decimals=2):
  return (f'{scale * values["dble"]:,.{decimals}f} '
          f'({scale * values["encoder"]:,.{decimals}f})')


if __name__ == '__main__':
  entry.run(main)
