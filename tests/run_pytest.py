"""Runs pytest on the arguments: the main of every test under Bazel.

  python tests/run_pytest.py tests/metrics_test.py
"""

import sys

import pytest

if __name__ == '__main__':
  # This script's folder, where `launch` is the folder of the tests of launch.
  del sys.path[0]
  # One process: Bazel runs tests side by side.
  raise SystemExit(pytest.main(['--numprocesses=0', *sys.argv[1:]]))
