import json
import os
import subprocess

import pytest

from launch import benchmark
from launch.benchmarks import measurements
from launch.cli import flagfiles
from launch.settings import choices


@pytest.mark.slow
def test_requested_parts_are_measured_written_and_shown(launch, tmp_path):
  process = launch(
      'benchmark', '--encoder=mlp', '--rounds=1', '--parts=training',
      '--parts=replicas', '--parts=input_pipeline', f'--output={tmp_path}')
  assert process.returncode == 0, process.stderr
  results = json.loads((tmp_path / 'benchmark.json').read_text())
  assert results['encoder'] == 'mlp'
  assert results['training']['images'] == 200  # As mnist.flags says.
  assert list(results['replicas']['seconds']) == ['1', '2']
  assert 'inference' not in results
  table = (tmp_path / 'benchmark.md').read_text()
  assert table in process.stdout and str(tmp_path) in process.stdout
  assert '1.00 of vanilla' in table and 'medians of 1 round,' in table


@pytest.mark.slow
def test_it_runs_outside_of_the_checkout(command, tmp_path):
  process = subprocess.run(
      **{**command('benchmark', '--encoder=mlp', '--rounds=1', '--parts=centers'),
         'cwd': tmp_path}, capture_output=True,
      env={**os.environ, 'PYTHONPATH': str(command('benchmark')['cwd'])})
  assert process.returncode == 0, process.stderr
  assert (tmp_path / 'runs' / 'benchmark-mlp' / 'benchmark.json').exists()


def test_an_unknown_part_is_refused(launch):
  process = launch('benchmark', '--parts=weather')
  assert process.returncode == 1 and 'weather' in process.stderr
  assert 'Traceback' not in process.stderr


def test_encoders_are_measured_in_experiments_that_use_them():
  for encoder, experiment in benchmark.EXPERIMENTS.items():
    assert encoder in choices.ENCODERS
    assert experiment in flagfiles.experiments()
    assert measurements.read_flags(experiment).encoder == encoder


def test_each_part_but_serving_is_a_function():
  for part in set(benchmark.PARTS) - {'serving'}:
    assert callable(getattr(measurements, part))
