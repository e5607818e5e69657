"""Flags, help, errors and signals of the commands, without TensorFlow."""
