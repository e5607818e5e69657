import subprocess
import sys

import pytest


def run(body):
  program = f'from launch import entry\n{body}'
  return subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True)


@pytest.mark.parametrize('error, code, message', [
    ("__import__('dble_tf.errors').errors.UserError('use fewer ways')", 1,
     'error: use fewer ways\n'),
    ("OSError(28, 'No space left on device')", 1,
     'error: [Errno 28] No space left on device: make room'),
    ("OSError('of a kind of its own')", 1, 'error: of a kind of its own\n'),
    ("entry.tf.errors.ResourceExhaustedError(None, None, 'a/b; No space left on device')",
     1, 'make room'),
    ("entry.tf.errors.PermissionDeniedError(None, None, 'a/b; Read-only file system')",
     1, 'give a directory that can be written'),
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


@pytest.mark.parametrize('error', [
    "KeyError('bug')", "entry.tf.errors.ResourceExhaustedError(None, None, 'bug')"])
def test_a_mistake_of_ours_keeps_its_traceback(error):
  done = run(f'def main(): raise {error}\nentry.run(main)')
  assert done.returncode == 1
  assert 'Traceback' in done.stderr and 'bug' in done.stderr


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


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
