import json
import os
import subprocess

import pytest

from launch import benchmark


def test_what_was_asked_for_is_measured_written_and_shown(launch, tmp_path):
  process = launch(
      'benchmark', '--encoder=mlp', '--rounds=1', '--parts=training', '--parts=replicas',
      '--parts=input_pipeline', f'--output={tmp_path}')
  assert process.returncode == 0, process.stderr
  results = json.loads((tmp_path / 'benchmark.json').read_text())
  assert results['encoder'] == 'mlp'
  assert results['training']['images'] == 200  # As launch/mnist.flags says.
  assert list(results['replicas']['seconds']) == ['1', '2']
  assert 'inference' not in results
  table = (tmp_path / 'benchmark.md').read_text()
  assert table in process.stdout and str(tmp_path) in process.stdout
  assert '1.00 of vanilla' in table


RESULTS = {
    'encoder': 'vgg11', 'rounds': 7, 'date': '2026-01-01', 'machine': 'a machine',
    'training': {
        'images': 400,
        'seconds': {'vanilla': 2.0, 'leave_one_out': 2.5},
        'to_vanilla': {'vanilla': 1.0, 'leave_one_out': 1.25}},
    'replicas': {
        'images': 400, 'seconds': {'1': 2.0, '2': 1.6}, 'to_one': {'1': 1.0, '2': 0.8}},
    'input_pipeline': {
        'images_per_second': 1600.0,
        'seconds_per_image': {'10 classes of 7 images': 2e-6}},
    'inference': {'images': 500, 'seconds': {'20': 1.02, 'encoder': 1.0},
                  'to_encoder': {'20': 1.02, 'encoder': 1.0}},
    'centers': {'images': 2000, 'to_encoder': 0.98, 'seconds': {}},
    'startup': {'import': 5.0, 'data': 1.0},
    'memory': {'training, 50,000 images': 3 * 2**30},
    'sizes': {'num_ways': {'2': 0.1, '10': 0.4}, 'num_shots': {'1': 0.2}},
}


def test_the_table_has_a_row_for_everything_measured():
  rows = benchmark.table(RESULTS).splitlines()
  for row in (
      '| training, leave-one-out, 400 images | 2,500.0 ms, 1.25 of vanilla |',
      '| training, 2 replicas, 400 images | 250 images/s, 0.80 of the time of one |',
      # 400 images in 2.5 s are 160 a second, a tenth of 1,600.
      '| input pipeline | 1,600 images/s, 10.0 times what a step takes |',
      '| input pipeline, 10 classes of 7 images | 2.0 µs an image |',
      '| inference, U = 20, 500 images | 1,020.0 ms, 1.020 of the encoder |',
      '| centers of 2,000 images | 0.980 of encoding them |',
      '| start to first step | import 5.0 s, data 1.0 s |',
      '| peak memory, training, 50,000 images | 3.00 GiB |'):
    assert row in rows
  assert rows[-1] == ('vgg11, medians of 7 rounds, start-up of at most three, memory '
                      'of one, 2026-01-01, a machine')


def test_costs_against_sizes_are_plotted(tmp_path):
  benchmark.write(benchmark.epath.Path(tmp_path), RESULTS)
  assert (tmp_path / 'benchmark.png').read_bytes().startswith(b'\x89PNG')


def test_outside_the_repository_it_says_where_to_run(command, tmp_path):
  process = subprocess.run(
      **{**command('benchmark'), 'cwd': tmp_path}, capture_output=True,
      env={**os.environ, 'PYTHONPATH': str(command('benchmark')['cwd'])})
  assert process.returncode == 1
  assert 'run this in the repository' in process.stderr
  assert 'Traceback' not in process.stderr


def test_an_unknown_part_is_refused(launch):
  process = launch('benchmark', '--parts=weather')
  assert process.returncode == 1 and 'weather' in process.stderr
  assert 'Traceback' not in process.stderr


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
