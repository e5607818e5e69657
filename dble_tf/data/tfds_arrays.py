"""Data sets of TensorFlow Datasets, as arrays in memory."""

import os

import numpy as np
import tensorflow_datasets as tfds

from dble_tf.errors import first_line
from dble_tf.errors import UserError


def load_arrays(
    name: str, data_dir: str | os.PathLike | None, test_split: str = 'test'
) -> tuple[tuple, tuple, list[str]]:
  """Train and test (images, class ids), and class names.

  What is prepared under `data_dir` is read without the network; what is not is
  downloaded and prepared there by TFDS.

  Args:
    name: of a TFDS data set of images with one label.
    data_dir: TFDS' directory; its own default where None.
    test_split: the split that figures are reported on.
  """
  builder = tfds.builder(name, data_dir=data_dir)
  if not builder.is_prepared():
    _download(builder)
  train, test = (
      _arrays(builder.as_dataset(split=split, batch_size=-1, shuffle_files=False))
      for split in ('train', test_split))
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
        'On a machine with access to the internet, run\n'
        "  python -c \"from dble_tf import data as datasets; "
        f"datasets.load('{builder.name}', 'DIR')\"\n"
        'and copy DIR here, then pass it as --data_dir.') from error
