"""The flags that commands share, without TensorFlow."""
