"""The commands: train, evaluate, compare, export, predict, benchmark, cloud_tpu.

In the checkout they run as `python -m launch.train`; installed, this package is
`dble_launch` and they are the scripts `dble-train` and so on.
"""

import os

# TensorFlow's start-up notes would bury the messages meant for the user.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# TensorFlow leaves oneDNN off on some processors where it is three times as fast.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
