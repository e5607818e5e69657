"""Entry points: python -m launch.train, python -m launch.evaluate."""

import os

# TensorFlow's start-up notes would bury the messages meant for the user.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
