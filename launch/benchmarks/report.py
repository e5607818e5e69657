"""A benchmark from measuring its parts to the table."""

import json
import sys
import tempfile
import time
from collections.abc import Sequence

from etils import epath

from dble_tf import files
from dble_tf import plots
from dble_tf.training import strategies

from . import measurements
from . import random_data
from . import timing


def run(
    experiment: str, encoder: str, parts: Sequence[str], rounds: int, directory: str
) -> None:
  """Measures the parts one after the other, writes and prints the results.

  Args:
    experiment: whose settings are measured.
    encoder: its encoder.
    parts: names of functions of `measurements`, or 'serving'.
    rounds: timings of each thing.
    directory: of the results, which are written after each part.
  """
  if 'replicas' in parts:
    strategies.virtual_devices(2)  # Used where there is no GPU; later is too late.
  values = measurements.read_flags(experiment)
  dataset = random_data.make(values.dataset, 10_000)
  results = {'encoder': encoder, 'rounds': rounds, 'date': time.strftime('%Y-%m-%d'),
             'machine': timing.machine()}
  for part in parts:
    print(f'{time.strftime("%H:%M:%S")} {part}', file=sys.stderr, flush=True)
    if part == 'serving':
      results[part] = _serving(values, rounds)
    elif part == 'startup':
      results[part] = measurements.startup(experiment, min(3, rounds))
    elif part == 'memory':
      results[part] = measurements.memory(encoder)
    else:
      results[part] = getattr(measurements, part)(values, dataset, rounds)
    write(epath.Path(directory), results)
  print(f'\n{table(results)}\nresults in {directory}')


def _serving(values, rounds):
  from . import serving  # Needs gRPC, which no other part does.
  with tempfile.TemporaryDirectory() as directory:
    return serving.measure(
        values, random_data.make(values.dataset, 500), rounds, epath.Path(directory))


def write(directory: epath.Path, results: dict) -> None:
  """Writes the results so far: benchmark.json, benchmark.md and benchmark.png."""
  for name, content in (('benchmark.json', json.dumps(results, indent=2) + '\n'),
                        ('benchmark.md', table(results))):
    with files.replacing(directory / name) as temporary:
      temporary.write_text(content)
  if 'sizes' in results:
    plots.cost_curves(
        directory / 'benchmark.png',
        {name: {int(x): 1e3 * seconds for x, seconds in curve.items()}
         for name, curve in results['sizes'].items()},
        f'ms per step, {results["encoder"]}')


def table(results: dict) -> str:
  """The results as a table in Markdown."""
  rows = [('what', 'measured'), ('---', '---')]
  if part := results.get('training'):
    for name, seconds in part['seconds'].items():
      rows.append((
          f'training, {name.replace("_", "-")}, {part["images"]} images',
          f'{1e3 * seconds:,.1f} ms, {part["to_vanilla"][name]:.2f} of vanilla'))
    rows.append(('training, leave-one-out with a confidence model',
                 f'{part["to_prototypical"]:.2f} of the time without'))
  if part := results.get('replicas'):
    for name, seconds in part['seconds'].items():
      rows.append((
          f'training, {_count(int(name), "replica")}, {part["images"]} images',
          f'{part["images"] / seconds:,.0f} images/s, {part["to_one"][name]:.2f} of '
          'the time of one'))
  if part := results.get('input_pipeline'):
    rate = part['images_per_second']
    text = f'{rate:,.0f} images/s'
    if training := results.get('training'):
      step = training['images'] / training['seconds']['leave_one_out']
      text += f', {rate / step:.1f} times the rate of a step'
    rows.append(('input pipeline', text))
    for name, seconds in part['seconds_per_image'].items():
      rows.append((f'input pipeline, {name}', f'{1e6 * seconds:.1f} µs per image'))
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
  if part := results.get('serving'):
    rows += _serving_rows(part)
  return (''.join(f'| {left} | {right} |\n' for left, right in rows)
          + f'\n{results["encoder"]}, medians of {_count(results["rounds"], "round")}, '
          'start-up of at most three, memory of one, '
          f'{results["date"]}, {results["machine"]}\n')


def _count(number, noun):
  return f'{number} {noun}' + ('s' if number != 1 else '')


def _serving_rows(part):
  """Rows of exports, with those of the encoder alone in parentheses."""

  def pair(numbers, scale, decimals=2):
    return (f'{scale * numbers["dble"]:,.{decimals}f} '
            f'({scale * numbers["encoder"]:,.{decimals}f})')

  yield 'serving, size (encoder alone)', f'{pair(part["bytes"], 1e-6)} MB'
  yield 'serving, loading', f'{pair(part["load_seconds"], 1)} s'
  for batch, requests in part['requests'].items():
    yield (f'serving, batch of {batch}',
           f'{pair(requests["per_second"], 1, 0)} requests/s, '
           f'p50 {pair(requests["p50"], 1e3)} ms, p99 {pair(requests["p99"], 1e3)} ms, '
           f'{requests["to_encoder"]:.3f} of the encoder')
