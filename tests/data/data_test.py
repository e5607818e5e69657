import numpy as np
import pytest

from dble_tf import data as datasets
from dble_tf.errors import UserError


def test_digits_load_without_a_data_dir():
  data = datasets.load('digits', validation_size=200, seed=3)
  assert (len(data.train), len(data.validation), len(data.test)) == (1000, 200, 597)
  assert data.image_shape == (8, 8, 1)
  assert data.class_names == tuple('0123456789')


def test_seeds_change_validation_and_leave_test_alone():
  first, second = (
      datasets.load('digits', validation_size=200, seed=seed) for seed in (0, 1))
  assert not np.array_equal(first.validation.images, second.validation.images)
  np.testing.assert_array_equal(first.test.images, second.test.images)


def test_an_unknown_name_lists_the_known_ones():
  with pytest.raises(UserError, match="'cifar'.*digits, mnist, .*cifar10"):
    datasets.load('cifar')


@pytest.mark.parametrize('name, policy', [
    ('digits', 'none'), ('mnist', 'none'), ('cifar10', 'crop_flip'),
    ('cifar100', 'crop_flip'), ('tiny_imagenet', 'flip')])
def test_augmentation_is_chosen_by_the_data_set(name, policy):
  assert datasets.AUGMENTATION_POLICIES[name] == policy


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
