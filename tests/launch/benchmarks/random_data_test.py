import numpy as np
import pytest

from dble_tf import data
from launch.benchmarks import random_data


@pytest.mark.parametrize('name', list(random_data.IMAGE_SHAPES))
def test_images_have_the_shape_and_the_classes_of_the_data_set(name):
  *shape, num_classes = random_data.IMAGE_SHAPES[name]
  made = random_data.make(name, 400)
  assert made.train.images.shape == (400, *shape)
  assert made.num_classes == num_classes
  assert (np.bincount(made.train.class_ids) == 400 // num_classes).all()
  assert made.augmentation_policy == data.AUGMENTATION_POLICIES[name]


def test_every_data_set_has_a_shape():
  assert set(random_data.IMAGE_SHAPES) == set(data.AUGMENTATION_POLICIES)


def test_shapes_are_those_of_the_data():
  digits = data.load('digits')
  assert random_data.IMAGE_SHAPES['digits'] == (*digits.image_shape, 10)


def test_images_can_be_of_another_size():
  assert random_data.make('cifar10', 20, image_size=5).image_shape == (5, 5, 3)
