import numpy as np
import pytest

from dble_tf.data import splits
from dble_tf.errors import UserError


def arrays(counts, offset=0):
  """Images whose single pixel pair tells the example's number."""
  class_ids = np.repeat(np.arange(len(counts)), counts)
  numbers = np.arange(offset, offset + len(class_ids))
  images = np.stack([numbers // 256, numbers % 256], axis=1).astype(np.uint8)
  return images.reshape(-1, 1, 2, 1), class_ids


def numbers(split):
  return split.images[:, 0, 0, 0].astype(int) * 256 + split.images[:, 0, 1, 0]


TRAIN, TEST = arrays([200, 100, 100]), arrays([2, 2, 2], offset=1000)


def test_validation_is_a_part_of_train_in_proportion_to_the_classes():
  data = splits.from_arrays(TRAIN, TEST, validation_size=40)
  np.testing.assert_array_equal(np.bincount(data.validation.class_ids), [20, 10, 10])
  np.testing.assert_array_equal(np.bincount(data.train.class_ids), [180, 90, 90])
  together = np.concatenate([numbers(data.train), numbers(data.validation)])
  np.testing.assert_array_equal(np.sort(together), np.arange(400))
  for split in (data.train, data.validation):  # Labels stay with their images.
    np.testing.assert_array_equal(split.class_ids, TRAIN[1][numbers(split)])


def test_the_seed_decides_what_is_held_out_and_never_touches_test():
  a, b, c = (splits.from_arrays(TRAIN, TEST, validation_size=40, seed=seed)
             for seed in (0, 0, 1))
  np.testing.assert_array_equal(numbers(a.validation), numbers(b.validation))
  assert not np.array_equal(numbers(a.validation), numbers(c.validation))
  np.testing.assert_array_equal(numbers(a.test), numbers(c.test))


def test_without_validation_train_stays_whole():
  data = splits.from_arrays(TRAIN, TEST)
  assert len(data.train) == 400 and len(data.validation) == 0


def test_batches_hold_every_example_once_in_order():
  data = splits.from_arrays(TRAIN, TEST)
  seen = np.concatenate(
      [class_ids for _, class_ids in data.train.batches(33).as_numpy_iterator()])
  np.testing.assert_array_equal(seen, TRAIN[1])


def test_grey_images_without_a_channel_get_one():
  data = splits.from_arrays((TRAIN[0][..., 0], TRAIN[1]), TEST, class_names='abc')
  assert data.image_shape == (1, 2, 1)
  assert data.class_names == ('a', 'b', 'c')
  assert data.num_classes == 3


@pytest.mark.parametrize('change, message', [
    ({'train': (TRAIN[0] / 255, TRAIN[1])}, 'train images must be uint8'),
    ({'train': (TRAIN[0][:, 0, 0, 0], TRAIN[1])}, r'shape \[400\]'),
    ({'train': (TRAIN[0][:5], TRAIN[1])}, '5 images but 400 labels'),
    ({'test': (TEST[0][:0], TEST[1][:0])}, 'test split is empty'),
    ({'train': (TRAIN[0], TRAIN[1] - 1)}, 'integers from 0'),
    ({'train': (TRAIN[0], TRAIN[1] + 0.5)}, 'integers from 0'),
    ({'test': (np.zeros([6, 2, 2, 1], np.uint8), TEST[1])}, 'resize them to one'),
    ({'class_names': ['a', 'b', 'c', 'd']}, r'no image of class 3 \(d\)'),
    ({'class_names': ['a', 'b']}, 'class id 2, but there are only 2 classes'),
    ({'validation_size': 2}, 'at least one of each'),
    ({'validation_size': 399}, 'at least one of each'),
    ({'train': arrays([9, 1]), 'test': arrays([1, 1]), 'validation_size': 4},
     'Class 1 has a single training image'),
])
def test_what_is_wrong_with_the_data_is_said(change, message):
  with pytest.raises(UserError, match=message):
    splits.from_arrays(**{'train': TRAIN, 'test': TEST, **change})


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
