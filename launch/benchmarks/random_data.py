"""Random images in the shape of a data set: to measure cost, nothing is learned."""

import numpy as np

from dble_tf import data as datasets

# Height, width, channels and number of classes.
IMAGE_SHAPES = {
    'digits': (8, 8, 1, 10),
    'mnist': (28, 28, 1, 10),
    'fashion_mnist': (28, 28, 1, 10),
    'cifar10': (32, 32, 3, 10),
    'cifar100': (32, 32, 3, 100),
    'tiny_imagenet': (64, 64, 3, 200),
}


def make(
    name: str, num_images: int, image_size: int | None = None) -> datasets.Dataset:
  """Random images of a data set's shape, with its classes and augmentation."""
  height, width, channels, num_classes = IMAGE_SHAPES[name]
  shape = [image_size or height, image_size or width, channels]
  rng = np.random.default_rng(0)

  def split(size):
    return (rng.integers(256, size=[size, *shape], dtype=np.uint8),
            np.arange(size, dtype=np.int32) % num_classes)

  return datasets.from_arrays(
      split(num_images), split(num_classes),
      augmentation_policy=datasets.AUGMENTATION_POLICIES[name])
