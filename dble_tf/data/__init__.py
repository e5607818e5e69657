"""Data sets by name: `load('cifar10', data_dir)` -> train, validation and test."""

import os

from dble_tf.data import digits
from dble_tf.data import tfds_arrays
from dble_tf.data import tiny_imagenet  # Registers the builder with TFDS.
from dble_tf.data.splits import Dataset
from dble_tf.data.splits import from_arrays
from dble_tf.data.splits import Split
from dble_tf.errors import UserError

# The data sets that `load` knows, and how their training images are augmented.
AUGMENTATION_POLICIES = {
    'digits': 'none',
    'mnist': 'none',
    'fashion_mnist': 'none',
    'cifar10': 'crop_flip',
    'cifar100': 'crop_flip',
    tiny_imagenet.TinyImagenet.name: 'flip',
}


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    validation_size: int = 0,
    seed: int = 0,
) -> Dataset:
  """Loads a data set into memory.

  Args:
    name: a key of `AUGMENTATION_POLICIES`.
    data_dir: where TFDS keeps its data sets.
    validation_size: how many training images become the validation split.
    seed: of that split.
  """
  if name not in AUGMENTATION_POLICIES:
    raise UserError(
        f'Unknown data set {name!r}: choose from '
        f'{", ".join(AUGMENTATION_POLICIES)}, or give arrays to '
        'dble_tf.datasets.from_arrays.')
  if name == 'digits':
    train, test, class_names = digits.load_arrays()
  else:
    train, test, class_names = tfds_arrays.load_arrays(name, data_dir)
  return from_arrays(
      train, test, class_names, validation_size, seed,
      AUGMENTATION_POLICIES[name])
