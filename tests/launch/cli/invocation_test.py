import subprocess
import sys

from launch.cli import invocation


def test_in_the_checkout_commands_are_modules():
  assert invocation.typed('cloud_tpu') == 'python -m launch.cloud_tpu'
  assert invocation.process('train') == [sys.executable, '-m', 'launch.train']
  text = 'Try python -m launch.train --help.'
  assert invocation.localized(text) == text


def test_installed_commands_are_scripts(tmp_path):
  # The folder under the name that it is installed with.
  (tmp_path / 'dble_launch').symlink_to(invocation.__file__.rpartition('/cli/')[0])
  done = subprocess.run(
      [sys.executable, '-c', 'from dble_launch.cli import invocation as i\n'
       'print(i.typed("cloud_tpu"), i.process("train")[1:])\n'
       'print(i.localized("Try python -m launch.cloud_tpu --help."))'],
      cwd=tmp_path, capture_output=True, text=True)
  assert done.stdout.splitlines() == [
      "dble-cloud-tpu ['-m', 'dble_launch.train']", 'Try dble-cloud-tpu --help.']


def test_installed_help_names_the_script(tmp_path):
  (tmp_path / 'dble_launch').symlink_to(invocation.__file__.rpartition('/cli/')[0])
  done = subprocess.run(
      [sys.executable, '-m', 'dble_launch.train', '--help'], cwd=tmp_path,
      capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert 'dble-train --flagfile' in done.stdout
  assert 'python -m' not in done.stdout
