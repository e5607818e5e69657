"""Divides the CPU for all tests: TensorFlow cannot do so once it is initialized."""

from dble_tf.training import strategies

strategies.virtual_devices(4)
