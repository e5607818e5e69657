import subprocess
import sys

import pytest
import tensorflow as tf
from absl import app

from launch import entry


def run(body):
  program = f'from launch import entry\n{body}'
  return subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True)


@pytest.mark.parametrize('error, code, message', [
    ("__import__('dble_tf.errors').errors.UserError('use fewer ways')", 1,
     'error: use fewer ways\n'),
    ("OSError(28, 'No space left on device')", 1,
     'error: [Errno 28] No space left on device: make room'),
    ('KeyboardInterrupt()', 130, 'interrupted'),
])
def test_errors_are_told_without_a_traceback(error, code, message):
  done = run(f'def main(): raise {error}\nentry.run(main)')
  assert done.returncode == code
  assert message in done.stderr
  assert 'Traceback' not in done.stderr


def test_ctrl_c_while_modules_load_shows_no_traceback():
  done = subprocess.run(
      [sys.executable, '-c', 'import launch; raise KeyboardInterrupt'],
      capture_output=True, text=True)
  assert done.returncode != 0
  assert done.stderr == 'interrupted\n'


def test_a_mistake_of_ours_keeps_its_traceback():
  done = run('def main(): raise KeyError("bug")\nentry.run(main)')
  assert done.returncode == 1
  assert 'Traceback' in done.stderr and 'bug' in done.stderr


@pytest.mark.parametrize('error, message', [
    (OSError('of a kind of its own'), 'error: of a kind of its own\n'),
    (tf.errors.ResourceExhaustedError(None, None, 'a/b; No space left on device'),
     'make room'),
    (tf.errors.PermissionDeniedError(None, None, 'a/b; Read-only file system'),
     'give a directory that can be written'),
])
def test_errors_of_files_come_with_what_to_do(error, message, monkeypatch, capsys):
  assert code_of(error, monkeypatch) == 1
  assert message in capsys.readouterr().err


def test_other_errors_of_tensorflow_are_mistakes_of_ours(monkeypatch):
  error = tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating')
  with pytest.raises(tf.errors.ResourceExhaustedError):
    code_of(error, monkeypatch)


def code_of(error, monkeypatch):
  """The exit code of a main that raises this error, in this process."""
  def main():
    raise error

  monkeypatch.setattr(app, 'run', lambda guarded: sys.exit(guarded(['test'])))
  with pytest.raises(SystemExit) as caught:
    entry.run(main)
  return caught.value.code


def test_sigterm_has_an_exit_code_of_its_own():
  done = run('import os, signal\n'
             'def main(): os.kill(os.getpid(), signal.SIGTERM)\nentry.run(main)')
  assert done.returncode == 75
  assert 'the same command continues' in done.stderr
  assert 'Traceback' not in done.stderr


def test_stray_arguments_are_refused():
  done = run("import sys; sys.argv.append('cifar10')\n"
             'def main(): print("ran")\nentry.run(main)')
  assert done.returncode == 1
  assert 'ran' not in done.stdout
  assert 'Unexpected arguments: cifar10' in done.stdout + done.stderr


def test_arguments_reach_a_main_that_takes_them_and_its_code_is_the_exit_code():
  done = run("import sys; sys.argv += ['a.png', 'b.png']\n"
             'def main(arguments): print(arguments); return 2\n'
             'entry.run(main, takes_arguments=True)')
  assert done.returncode == 2, done.stderr
  assert done.stdout == "['a.png', 'b.png']\n"


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
