"""Random images in the shape of a data set, for measuring cost without a download."""

import numpy as np

from dble_tf.data import AUGMENTATION_POLICIES
from dble_tf.data import Dataset
from dble_tf.data import from_arrays

# Height, width, channels and number of classes.
IMAGE_SHAPES = {
    'digits': (8, 8, 1, 10),
    'mnist': (28, 28, 1, 10),
    'fashion_mnist': (28, 28, 1, 10),
    'cifar10': (32, 32, 3, 10),
    'cifar100': (32, 32, 3, 100),
    'tiny_imagenet': (64, 64, 3, 200),
}


def make(name: str, num_images: int, image_size: int | None = None) -> Dataset:
  """Makes random images with the shape, classes and augmentation of a data set.

  Args:
    name: of the data set.
    num_images: of the train split; the test split has one image per class.
    image_size: height and width; those of the data set if None.
  """
  height, width, channels, num_classes = IMAGE_SHAPES[name]
  shape = [image_size or height, image_size or width, channels]
  rng = np.random.default_rng(0)

  def split(size):
    return (rng.integers(256, size=[size, *shape], dtype=np.uint8),
            np.arange(size, dtype=np.int32) % num_classes)

  return from_arrays(
      split(num_images), split(num_classes),
      augmentation_policy=AUGMENTATION_POLICIES[name])
