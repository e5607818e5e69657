import json

import pytest


def test_seconds_and_memory_are_reported(launch):
  process = launch(
      'benchmarks.first_steps', '--flagfile=digits', '--num_images=1000',
      '--num_predicted=50')
  assert process.returncode == 0, process.stderr
  report = json.loads(process.stdout.splitlines()[-1])
  assert set(report) == {'import', 'data', 'build', 'trace', 'step', 'peak_memory'}
  assert report['import'] > 0 and report['data'] > 0 and report['build'] > 0
  # TensorFlow alone takes more than this; units would show.
  assert 2**27 < report['peak_memory'] < 2**35


@pytest.mark.slow
def test_memory_of_the_process_that_starts_it_does_not_count(launch):
  ballast = bytearray(2 * 2**30)  # Held in memory once it is written to.
  ballast[::4096] = b'x' * len(ballast[::4096])
  process = launch('benchmarks.first_steps', '--flagfile=digits',
                   '--method=vanilla', '--num_images=1000', '--num_predicted=50')
  assert process.returncode == 0, process.stderr
  report = json.loads(process.stdout.splitlines()[-1])
  assert report['peak_memory'] < len(ballast)


def test_a_data_set_is_required(launch):
  process = launch('benchmarks.first_steps')
  assert process.returncode != 0
  assert '--dataset' in process.stderr and 'Traceback' not in process.stderr
