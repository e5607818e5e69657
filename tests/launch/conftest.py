"""Entry points run as a user runs them, and one finished run that tests share."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='session')
def command():
  """(module, *arguments) -> what subprocess takes to run it in the repository."""
  def build(module, *arguments):
    return {'args': [sys.executable, '-m', f'launch.{module}', *map(str, arguments)],
            'cwd': ROOT, 'text': True}
  return build


@pytest.fixture(scope='session')
def launch(command):
  """(module, *arguments) -> the completed process."""
  return lambda *arguments: subprocess.run(capture_output=True, **command(*arguments))


@pytest.fixture(scope='session')
def train_digits(launch):
  """(workdir, *arguments) -> a short training on digits."""
  return lambda workdir, *arguments: launch(
      'train', '--flagfile=launch/digits.flags', '--epochs=2', '--steps_per_epoch=15',
      f'--workdir={workdir}', *arguments)


@pytest.fixture(scope='session')
def finished(train_digits, tmp_path_factory):
  """The directory of a finished run, and the process that made it."""
  workdir = tmp_path_factory.mktemp('runs') / 'digits'
  return workdir, train_digits(workdir, '--deterministic')
