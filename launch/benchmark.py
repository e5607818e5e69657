"""Measures what DBLE costs beside plain training, on the machine it runs on.

  python -m launch.benchmark --encoder=vgg11

Everything that is compared is timed in turns within one run, and medians are
reported. Writes benchmark.json, benchmark.md and benchmark.png.
"""

import json
import sys
import time

from absl import flags
from etils import epath

from dble_tf import files
from dble_tf.training import strategies
from dble_tf import encoders
from dble_tf import plots
from launch import entry
from launch import measurements
from launch import random_data
from launch import timing

FLAGS = flags.FLAGS

# The experiment of the paper that each encoder is measured in.
EXPERIMENTS = {'mlp': 'mnist', 'vgg11': 'cifar10', 'resnet50': 'cifar100'}
PARTS = ('training', 'replicas', 'input_pipeline', 'inference', 'centers', 'startup',
         'memory', 'sizes')

flags.DEFINE_enum('encoder', 'vgg11', list(encoders.ENCODERS), 'What is measured.')
flags.DEFINE_integer('rounds', 7, 'How often each thing is timed.', lower_bound=1)
flags.DEFINE_string(
    'output', None, 'Directory of the results; runs/benchmark-<encoder> if not given.')
flags.DEFINE_multi_enum('parts', list(PARTS), PARTS, 'What to measure; repeat the flag '
                        'for several. All if not given.')


def main() -> None:
  flagfile = f'launch/{EXPERIMENTS[FLAGS.encoder]}.flags'
  values = measurements.read_flags(flagfile)
  if 'replicas' in FLAGS.parts:
    strategies.virtual_devices(2)  # For where there is no GPU; later is too late.
  directory = epath.Path(FLAGS.output or f'runs/benchmark-{FLAGS.encoder}')
  dataset = random_data.make(values.dataset, 10_000)
  results = {'encoder': FLAGS.encoder, 'rounds': FLAGS.rounds,
             'date': time.strftime('%Y-%m-%d'), 'machine': timing.machine()}
  for part in FLAGS.parts:
    print(f'{time.strftime("%H:%M:%S")} {part}', file=sys.stderr, flush=True)
    measure = getattr(measurements, part)
    if part == 'startup':
      results[part] = measure(flagfile, min(3, FLAGS.rounds))
    elif part == 'memory':
      results[part] = measure(FLAGS.encoder)
    else:
      results[part] = measure(values, dataset, FLAGS.rounds)
    write(directory, results)
  print(f'\n{table(results)}\nresults in {directory}')


def write(directory: epath.Path, results: dict) -> None:
  """Writes what has been measured so far."""
  for name, content in (('benchmark.json', json.dumps(results, indent=2) + '\n'),
                        ('benchmark.md', table(results))):
    with files.replacing(directory / name) as temporary:
      temporary.write_text(content)
  if 'sizes' in results:
    plots.cost_curves(
        directory / 'benchmark.png',
        {name: {int(x): 1e3 * seconds for x, seconds in curve.items()}
         for name, curve in results['sizes'].items()},
        f'ms a step, {results["encoder"]}')


def table(results: dict) -> str:
  """The results as a table in Markdown."""
  rows = [('what', 'measured'), ('---', '---')]
  if part := results.get('training'):
    for name, seconds in part['seconds'].items():
      rows.append((
          f'training, {name.replace("_", "-")}, {part["images"]} images',
          f'{1e3 * seconds:,.1f} ms, {part["to_vanilla"][name]:.2f} of vanilla'))
  if part := results.get('replicas'):
    for name, seconds in part['seconds'].items():
      rows.append((
          f'training, {name} replica{"s"[:name != "1"]}, {part["images"]} images',
          f'{part["images"] / seconds:,.0f} images/s, {part["to_one"][name]:.2f} of the '
          'time of one'))
  if part := results.get('input_pipeline'):
    rate = part['images_per_second']
    text = f'{rate:,.0f} images/s'
    if training := results.get('training'):
      step = training['images'] / training['seconds']['leave_one_out']
      text += f', {rate / step:.1f} times what a step takes'
    rows.append(('input pipeline', text))
    for name, seconds in part['seconds_per_image'].items():
      rows.append((f'input pipeline, {name}', f'{1e6 * seconds:.1f} µs an image'))
  if part := results.get('inference'):
    for name, seconds in part['seconds'].items():
      title = 'encoder alone' if name == 'encoder' else f'U = {int(name):,}'
      rows.append((
          f'inference, {title}, {part["images"]} images',
          f'{1e3 * seconds:,.1f} ms, {part["to_encoder"][name]:.3f} of the encoder'))
  if part := results.get('centers'):
    rows.append((f'centers of {part["images"]:,} images',
                 f'{part["to_encoder"]:.3f} of encoding them'))
  if part := results.get('startup'):
    rows.append(('start to first step', ', '.join(
        f'{name} {seconds:.1f} s' for name, seconds in part.items())))
  for name, peak in results.get('memory', {}).items():
    rows.append((f'peak memory, {name}', f'{peak / 2**30:.2f} GiB'))
  return (''.join(f'| {left} | {right} |\n' for left, right in rows)
          + f'\n{results["encoder"]}, medians of {results["rounds"]} rounds, '
          'start-up of at most three, memory of one, '
          f'{results["date"]}, {results["machine"]}\n')


if __name__ == '__main__':
  entry.run(main)
