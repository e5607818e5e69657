import os
import pathlib
import subprocess
import sys

import pytest

import launch as package

FOLDER = pathlib.Path(package.__file__).parent


def run(*arguments, **settings):
  return subprocess.run(
      [sys.executable, *arguments], capture_output=True, text=True,
      **{'cwd': FOLDER.parent, **settings})


def test_a_command_runs_by_its_name():
  by_name = run('-m', 'launch', 'train', '--help')
  assert by_name.returncode == 0, by_name.stderr
  assert by_name.stdout == run('-m', 'launch.train', '--help').stdout


@pytest.mark.parametrize('script', [FOLDER, FOLDER / '__main__.py'])
def test_it_works_as_a_script_from_any_directory(script, tmp_path):
  environment = {
      name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
  done = run(script, 'evaluate', '--wrokdir=here', cwd=tmp_path, env=environment)
  assert done.returncode == 1
  assert "flag 'wrokdir'. Did you mean: workdir ?" in done.stderr


def test_help_names_the_commands():
  done = run('-m', 'launch', '--help')
  assert done.returncode == 0
  assert done.stdout.endswith(
      'benchmark, cloud_tpu, compare, evaluate, export, predict, train\n')


@pytest.mark.parametrize('arguments, problem', [
    ([], 'no command'),
    (['trian'], "no command 'trian'"),
    (['cli'], "no command 'cli'"),
])
def test_an_unknown_command_is_told_in_one_line(arguments, problem):
  done = run('-m', 'launch', *arguments)
  assert (done.returncode, done.stdout) == (1, '')
  assert done.stderr.startswith(f'error: {problem}: run python -m launch COMMAND')
  assert len(done.stderr.splitlines()) == 1
