import os
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from dble_tf.errors import UserError
from launch.cli import entry

COMMANDS = (
    'train', 'evaluate', 'compare', 'export', 'predict', 'benchmark', 'cloud_tpu')


def run(body):
  program = f'from launch.cli import entry\n{body}'
  return subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True)


def raising(error):
  def main():
    raise error
  return main


def test_commands_are_imported_without_anything_heavy():
  program = f"""
import importlib, sys
from absl import flags
for command in {COMMANDS}:
  importlib.import_module(f'launch.{{command}}')
  for name in list(flags.FLAGS):
    delattr(flags.FLAGS, name)  # Commands share names, not processes.
heavy = {{'tensorflow', 'keras', 'numpy', 'etils', 'dble_tf'}} & set(sys.modules)
assert not heavy, heavy
"""
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('flag', ['--help', '-h', '--helpfull'])
def test_help_is_grouped_and_no_error(flag, launch):
  done = launch('train', flag)
  assert done.returncode == 0 and not done.stderr
  assert done.stdout.startswith('Trains, evaluates and exports')
  places = [done.stdout.index(f'\n{title}:\n') for title in (
      'run', 'data', 'model', 'training', 'calibration', 'abstention', 'devices')]
  assert places == sorted(places)
  model = done.stdout[places[2]:places[3]]
  assert '--encoder  (default: mlp)' in model and '--learning_rate' not in model
  assert 'cifar10_10000' in done.stdout  # Flag files by name.


def test_help_that_is_not_read_to_its_end_is_no_error(command):
  process = subprocess.Popen(
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, **command('train', '--help'))
  process.stdout.close()
  assert process.stderr.read() == ''
  process.wait()


@pytest.mark.parametrize('arguments, message', [
    (['train', '--wrokdir=here'], "flag 'wrokdir'. Did you mean: workdir ?"),
    (['train', '--dataset=digits', '--epochs=0'], '--epochs=0: 0 is not a positive'),
    (['train'], 'give an experiment, such as --flagfile=digits'),
    (['train', '--flagfile=cifar'], 'No flag file cifar: give a path, or one of'),
    (['evaluate'], '--workdir=runs/digits'),
    (['train', '--flagfile=digits', 'cifar10'], 'Unexpected arguments: cifar10'),
])
def test_mistakes_in_flags_are_told_in_one_line(arguments, message, launch):
  done = launch(*arguments)
  assert done.returncode == 1 and not done.stdout
  assert done.stderr.startswith('error: ') and message in done.stderr
  assert len(done.stderr.splitlines()) == 1


def test_flags_answer_in_under_a_second(launch):
  for argument in ('--help', '--wrokdir=here'):
    seconds = []
    for _ in range(3):
      start = time.monotonic()
      launch('train', argument)
      seconds.append(time.monotonic() - start)
    assert min(seconds) < 1  # The quickest: others may keep the machine busy.


@pytest.mark.parametrize('error, code, message', [
    (UserError('use fewer ways'), 1, 'error: use fewer ways\n'),
    (entry.CommandError('install it'), 1, 'error: install it\n'),
    (OSError(28, 'No space left on device'), 1,
     'error: [Errno 28] No space left on device: free some space'),
    (OSError('of another kind'), 1, 'error: of another kind\n'),
    (tf.errors.ResourceExhaustedError(None, None, 'a/b; No space left on device'), 1,
     'free some space'),
    (tf.errors.PermissionDeniedError(None, None, 'a/b; Read-only file system'), 1,
     'give a directory that can be written'),
    (KeyboardInterrupt(), 130, 'interrupted\n'),
])
def test_errors_of_users_are_told(error, code, message, capsys):
  assert entry.guarded(raising(error)) == code
  assert message in capsys.readouterr().err


@pytest.mark.parametrize('error', [
    KeyError('bug'),
    tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating')])
def test_bugs_are_raised(error):
  with pytest.raises(type(error)):
    entry.guarded(raising(error))


def test_an_error_shows_no_traceback_and_a_bug_does():
  done = run('def main(): raise entry.CommandError("no gcloud")\nentry.run(main)')
  assert (done.returncode, done.stderr) == (1, 'error: no gcloud\n')
  done = run('def main(): raise KeyError("bug")\nentry.run(main)')
  assert done.returncode == 1
  assert 'Traceback' in done.stderr and 'bug' in done.stderr


def test_ctrl_c_while_modules_load_is_no_error(command):
  # A shell starts background jobs deaf to Ctrl-C, and their children inherit it.
  inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    process = subprocess.Popen(
        stderr=subprocess.PIPE, **command('evaluate', '--workdir=/nowhere'))
  finally:
    signal.signal(signal.SIGINT, inherited)
  # TensorFlow's libraries are mapped long before its modules are loaded.
  deadline = time.monotonic() + 60
  while 'tensorflow' not in open(f'/proc/{process.pid}/maps').read():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == entry.INTERRUPTED
  assert errors.endswith('\ninterrupted\n') and 'Traceback' not in errors


def test_importing_commands_leaves_the_handling_of_exceptions_alone():
  done = subprocess.run(
      [sys.executable, '-c', 'import sys, launch.cli.entry\n'
       'assert sys.excepthook is sys.__excepthook__'])
  assert done.returncode == 0


def test_sigterm_has_an_exit_code_of_its_own(capsys):
  def main():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

  assert entry.guarded(main) == 75
  assert 'the same command continues' in capsys.readouterr().err


def test_arguments_reach_a_main_that_takes_them_and_its_code_is_the_exit_code():
  done = run("import sys; sys.argv += ['a.png', 'b.png']\n"
             'def main(arguments): print(arguments); return 2\n'
             'entry.run(main, takes_arguments=True)')
  assert done.returncode == 2, done.stderr
  assert done.stdout == "['a.png', 'b.png']\n"
