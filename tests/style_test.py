import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def test_the_linter_has_nothing_to_say():
  linted = subprocess.run(
      [sys.executable, '-m', 'ruff', 'check', '--no-cache', '--output-format=concise',
       ROOT], capture_output=True, text=True)
  assert linted.returncode == 0, linted.stdout + linted.stderr
