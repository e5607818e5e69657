"""Data sets of TensorFlow Datasets (TFDS), as arrays in memory."""

import os

import numpy as np
import tensorflow_datasets as tfds

from dble_tf.data import tiny_imagenet  # noqa: F401 (registers its TFDS builder)
from dble_tf.errors import first_line
from dble_tf.errors import UserError


def load_arrays(
    name: str, data_dir: str | os.PathLike | None
) -> tuple[tuple, tuple, list[str]]:
  """Returns train and test (images, class ids), and the class names.

  A data set already prepared in `data_dir` is read without network access; otherwise
  TFDS downloads and prepares it there.

  Args:
    name: name of a TFDS data set of images with one label each.
    data_dir: the TFDS directory; the TFDS default if None.
  """
  builder = tfds.builder(name, data_dir=data_dir)
  if not builder.is_prepared():
    _download(builder)
  train, test = (
      _arrays(builder.as_dataset(split=split, batch_size=-1, shuffle_files=False))
      for split in ('train', 'test'))
  return train, test, builder.info.features['label'].names


def _arrays(batch) -> tuple[np.ndarray, np.ndarray]:
  return batch['image'].numpy(), batch['label'].numpy()


def _download(builder):
  try:
    builder.download_and_prepare()
  except Exception as error:  # TFDS passes on whatever its libraries raise.
    raise UserError(
        f'The data set {builder.name} is not prepared in {builder.data_dir}, and '
        f'downloading it failed: {first_line(error)}\n'
        'On a machine with internet access, run\n'
        f"  dble_tf.data.load('{builder.name}', data_dir='DIR')\n"
        'in Python, copy DIR to this machine and pass its path as data_dir.'
    ) from error
