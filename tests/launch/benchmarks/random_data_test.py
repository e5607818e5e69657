import numpy as np
import pytest

from dble_tf import data as datasets
from launch import random_data


@pytest.mark.parametrize('name', list(random_data.IMAGE_SHAPES))
def test_images_have_the_shape_and_the_classes_of_the_data_set(name):
  *shape, num_classes = random_data.IMAGE_SHAPES[name]
  data = random_data.make(name, 400)
  assert data.train.images.shape == (400, *shape)
  assert data.num_classes == num_classes
  assert (np.bincount(data.train.class_ids) == 400 // num_classes).all()
  assert data.augmentation_policy == datasets.AUGMENTATION_POLICIES[name]


def test_shapes_are_those_of_the_data():
  digits = datasets.load('digits')
  assert random_data.IMAGE_SHAPES['digits'] == (*digits.image_shape, 10)


def test_images_can_be_of_another_size():
  assert random_data.make('cifar10', 20, image_size=5).image_shape == (5, 5, 3)


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
