"""Data sets: `load` one by name, or make one with `from_arrays`."""

import os

from dble_tf.data.splits import Dataset
from dble_tf.data.splits import from_arrays
from dble_tf.data.splits import Split
from dble_tf.errors import UserError

__all__ = ['AUGMENTATION_POLICIES', 'Dataset', 'Split', 'from_arrays', 'load']

# The data sets that `load` knows, with the augmentation of their training images.
AUGMENTATION_POLICIES = {
    'digits': 'none',
    'mnist': 'none',
    'fashion_mnist': 'none',
    'cifar10': 'crop_flip',
    'cifar100': 'crop_flip',
    'tiny_imagenet': 'flip',
}


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    validation_size: int = 0,
    seed: int = 0,
    *,
    threshold_size: int = 0,
    train_size: int | None = None,
) -> Dataset:
  """Loads a data set into memory, downloading it first if necessary.

  Args:
    name: a key of `AUGMENTATION_POLICIES`.
    data_dir: the directory of TensorFlow Datasets; its default if None. Not used for
      digits, which come with scikit-learn.
    validation_size: number of training images to hold out, stratified by class.
    seed: random seed for the division into splits; the test split is always the same.
    threshold_size: number of the held-out images that are the threshold split; the
      others are the validation split.
    train_size: number of the remaining training images to keep, stratified by class;
      all if None.
  """
  if name not in AUGMENTATION_POLICIES:
    raise UserError(
        f'Unknown data set {name!r}. Choose one of '
        f'{", ".join(AUGMENTATION_POLICIES)}, or pass your own arrays to '
        'dble_tf.data.from_arrays.')
  # Imported here because scikit-learn and TFDS are slow to import.
  if name == 'digits':
    from dble_tf.data import digits
    train, test, class_names = digits.load_arrays()
  else:
    from dble_tf.data import tfds_arrays
    train, test, class_names = tfds_arrays.load_arrays(name, data_dir)
  return from_arrays(
      train, test, class_names, validation_size, seed,
      AUGMENTATION_POLICIES[name], threshold_size=threshold_size, train_size=train_size)
