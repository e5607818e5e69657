"""Entry points: python -m launch.train, evaluate, compare, export, predict, benchmark,
benchmark_serving, cloud_tpu."""

import os
import sys

# TensorFlow's start-up notes would bury the messages meant for the user.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# TensorFlow leaves oneDNN off on some processors where it is three times as fast.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')


def _tell(kind, error, traceback):
  if issubclass(kind, KeyboardInterrupt):
    print('interrupted', file=sys.stderr)
  else:
    sys.__excepthook__(kind, error, traceback)


sys.excepthook = _tell  # Ctrl-C is no error, not even while modules are loading.
