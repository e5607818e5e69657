"""Commands as users run them, and one finished run that tests share."""

import pathlib
import subprocess
import sys

import pytest

from tests import in_process

ROOT = pathlib.Path(__file__).parents[2]
SHORT = ('--flagfile=launch/digits.flags', '--epochs=2', '--steps_per_epoch=15')


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
def train_digits():
  """(workdir, *arguments) -> a short training on digits, within this process."""
  return lambda workdir, *arguments: in_process.train(
      *SHORT, f'--workdir={workdir}', *arguments)


@pytest.fixture(scope='session')
def finished(launch, tmp_path_factory):
  """The directory of a finished run, and the process that made it."""
  workdir = tmp_path_factory.mktemp('runs') / 'digits'
  return workdir, launch('train', *SHORT, f'--workdir={workdir}', '--deterministic')
