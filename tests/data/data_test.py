import subprocess
import sys

import numpy as np
import pytest

from dble_tf.data import AUGMENTATION_POLICIES
from dble_tf.data import load
from dble_tf.errors import UserError


def test_digits_load_without_a_data_dir():
  data = load('digits', validation_size=200, seed=3)
  assert (len(data.train), len(data.validation), len(data.test)) == (1000, 200, 597)
  assert data.image_shape == (8, 8, 1)
  assert data.class_names == tuple('0123456789')


def test_seeds_change_validation_and_leave_test_unchanged():
  first, second = (load('digits', validation_size=200, seed=seed) for seed in (0, 1))
  assert not np.array_equal(first.validation.images, second.validation.images)
  np.testing.assert_array_equal(first.test.images, second.test.images)


def test_digits_are_divided_as_asked():
  data = load('digits', validation_size=300, threshold_size=100, train_size=500)
  assert [len(split) for split in (
      data.train, data.validation, data.threshold, data.test)] == [500, 200, 100, 597]
  whole = load('digits', validation_size=300, threshold_size=100)
  assert len(whole.train) == 900
  np.testing.assert_array_equal(data.threshold.images, whole.threshold.images)
  np.testing.assert_array_equal(data.validation.images, whole.validation.images)


def test_an_unknown_name_lists_the_known_ones():
  with pytest.raises(UserError, match="'cifar'.*digits, mnist, .*cifar10"):
    load('cifar')


@pytest.mark.parametrize('name, policy', [
    ('digits', 'none'), ('mnist', 'none'), ('cifar10', 'crop_flip'),
    ('cifar100', 'crop_flip'), ('tiny_imagenet', 'flip')])
def test_augmentation_is_chosen_by_the_data_set(name, policy):
  assert AUGMENTATION_POLICIES[name] == policy


def test_slow_libraries_are_imported_only_when_used():
  # Keras itself imports parts of some of them.
  program = '\n'.join([
      'import sys, keras',
      'before = set(sys.modules)',
      'import dble_tf.data, dble_tf.encoders, dble_tf.metrics',
      'print(*{name.split(".")[0] for name in set(sys.modules) - before})'])
  process = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True, check=True)
  imported = set(process.stdout.split())
  assert 'dble_tf' in imported
  assert not imported & {'tensorflow_datasets', 'sklearn', 'scipy', 'matplotlib'}
