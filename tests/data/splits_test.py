import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from dble_tf.data import batches
from dble_tf.data import episodes
from dble_tf.data import splits
from dble_tf.errors import UserError


def arrays(counts, offset=0):
  """Images of two pixels that encode the index of the example."""
  class_ids = np.repeat(np.arange(len(counts)), counts)
  numbers = np.arange(offset, offset + len(class_ids))
  images = np.stack([numbers // 256, numbers % 256], axis=1).astype(np.uint8)
  return images.reshape(-1, 1, 2, 1), class_ids


def numbers(split):
  return split.images[:, 0, 0, 0].astype(int) * 256 + split.images[:, 0, 1, 0]


TRAIN, TEST = arrays([200, 100, 100]), arrays([2, 2, 2], offset=1000)


def test_validation_is_a_stratified_part_of_train():
  data = splits.from_arrays(TRAIN, TEST, validation_size=40)
  np.testing.assert_array_equal(np.bincount(data.validation.class_ids), [20, 10, 10])
  np.testing.assert_array_equal(np.bincount(data.train.class_ids), [180, 90, 90])
  together = np.concatenate([numbers(data.train), numbers(data.validation)])
  np.testing.assert_array_equal(np.sort(together), np.arange(400))
  for split in (data.train, data.validation):  # Images keep their labels.
    np.testing.assert_array_equal(split.class_ids, TRAIN[1][numbers(split)])


def test_the_seed_decides_what_is_held_out_and_never_touches_test():
  a, b, c = (splits.from_arrays(TRAIN, TEST, validation_size=40, seed=seed)
             for seed in (0, 0, 1))
  np.testing.assert_array_equal(numbers(a.validation), numbers(b.validation))
  assert not np.array_equal(numbers(a.validation), numbers(c.validation))
  np.testing.assert_array_equal(numbers(a.test), numbers(c.test))


def test_without_validation_the_train_split_is_complete():
  data = splits.from_arrays(TRAIN, TEST)
  assert len(data.train) == 400 and len(data.validation) == len(data.threshold) == 0
  assert data.threshold.images.shape == (0, 1, 2, 1)


def test_held_out_images_are_for_validation_or_for_thresholds():
  whole = splits.from_arrays(TRAIN, TEST, validation_size=40)
  data = splits.from_arrays(TRAIN, TEST, validation_size=40, threshold_size=12)
  np.testing.assert_array_equal(np.bincount(data.threshold.class_ids), [6, 3, 3])
  np.testing.assert_array_equal(np.bincount(data.validation.class_ids), [14, 7, 7])
  together = np.concatenate([numbers(data.validation), numbers(data.threshold)])
  np.testing.assert_array_equal(np.sort(together), numbers(whole.validation))
  np.testing.assert_array_equal(numbers(data.train), numbers(whole.train))
  for split in (data.validation, data.threshold):
    np.testing.assert_array_equal(split.class_ids, TRAIN[1][numbers(split)])
  again, other = (splits.from_arrays(
      TRAIN, TEST, validation_size=40, threshold_size=12, seed=seed) for seed in (0, 1))
  np.testing.assert_array_equal(numbers(data.threshold), numbers(again.threshold))
  assert not np.array_equal(numbers(data.threshold), numbers(other.threshold))


def test_a_part_of_the_training_images_is_kept_class_by_class():
  arguments = {'validation_size': 40, 'threshold_size': 12}
  whole = splits.from_arrays(TRAIN, TEST, **arguments)
  # 180, 90 and 90 images are left. One of each class comes first; the next ones of
  # classes 1 and 2 come with the third of class 0, which is before them in the data.
  for size, counts in ((3, [1, 1, 1]), (5, [3, 1, 1]), (40, [20, 10, 10]),
                       (358, [179, 90, 89]), (360, [180, 90, 90])):
    data = splits.from_arrays(TRAIN, TEST, train_size=size, **arguments)
    np.testing.assert_array_equal(np.bincount(data.train.class_ids), counts)
    np.testing.assert_array_equal(data.train.class_ids, TRAIN[1][numbers(data.train)])
    assert set(numbers(data.train)) <= set(numbers(whole.train))
    for name in ('validation', 'threshold', 'test'):
      np.testing.assert_array_equal(
          numbers(getattr(data, name)), numbers(getattr(whole, name)))


def test_the_seed_decides_what_is_kept_and_more_images_include_the_fewer():
  kept = lambda size, seed=0: set(numbers(splits.from_arrays(
      TRAIN, TEST, train_size=size, seed=seed).train))
  assert kept(50) == kept(50) != kept(50, seed=1)
  assert kept(10) < kept(50) < kept(399) < kept(400) == set(range(400))


def test_rare_classes_stay_in_a_part_of_the_training_images():
  data = splits.from_arrays(arrays([97, 1, 2]), arrays([1, 1, 1]), train_size=10)
  np.testing.assert_array_equal(np.bincount(data.train.class_ids), [8, 1, 1])


def test_batches_hold_every_example_once_in_order():
  data = splits.from_arrays(TRAIN, TEST)
  seen = np.concatenate(
      [class_ids for _, class_ids in data.train.batches(33).as_numpy_iterator()])
  np.testing.assert_array_equal(seen, TRAIN[1])


def test_images_without_a_channel_axis_get_one():
  data = splits.from_arrays((TRAIN[0][..., 0], TRAIN[1]), TEST, class_names='abc')
  assert data.image_shape == (1, 2, 1)
  assert data.class_names == ('a', 'b', 'c')
  assert data.num_classes == 3


@pytest.mark.parametrize('change, message', [
    ({'train': (TRAIN[0] / 255, TRAIN[1])}, 'train images must be uint8'),
    ({'train': (TRAIN[0][:, 0, 0, 0], TRAIN[1])}, r'shape \[400\]'),
    ({'train': (TRAIN[0][:5], TRAIN[1])}, '5 images but 400 labels'),
    ({'test': (TEST[0][:0], TEST[1][:0])}, 'test split is empty'),
    ({'train': (TRAIN[0], TRAIN[1] - 1)}, 'non-negative integers'),
    ({'train': (TRAIN[0], TRAIN[1] + 0.5)}, 'non-negative integers'),
    ({'test': (np.zeros([6, 2, 2, 1], np.uint8), TEST[1])}, 'Resize them to the same'),
    ({'class_names': ['a', 'b', 'c', 'd']}, r'no image of class 3 \(d\)'),
    ({'class_names': ['a', 'b']}, 'class id 2, but there are only 2 classes'),
    ({'validation_size': 2}, 'at least one image per class'),
    ({'validation_size': 399}, 'at least one image per class'),
    ({'train': arrays([9, 1]), 'test': arrays([1, 1]), 'validation_size': 4},
     'Class 1 has 1 of 10 training images.*Change validation_size, or remove'),
    ({'train': arrays([96, 4]), 'test': arrays([1, 1]), 'validation_size': 5},
     'Class 1 has 4 of 100 training images, too few .* if 5 are held out'),
    ({'validation_size': 40, 'threshold_size': 2},
     'hold out 2 of 40 validation images .* at least one image per class.*Change '
     'threshold_size, which is a part of validation_size'),
    ({'validation_size': 40, 'threshold_size': 38}, 'at least one image per class'),
    ({'threshold_size': 10}, 'hold out 10 of 0 validation images'),
    ({'train': arrays([90, 10]), 'test': arrays([1, 1]), 'validation_size': 10,
      'threshold_size': 5}, 'Class 1 has 1 of 10 validation images'),
    ({'train_size': 2}, 'train on 2 of the 400 images of 3 classes.*one image per'),
    ({'train_size': 361, 'validation_size': 40}, '361 of the 360.*Change train_size'),
])
def test_invalid_data_is_refused(change, message):
  with pytest.raises(UserError, match=message):
    splits.from_arrays(**{'train': TRAIN, 'test': TEST, **change})


def colored(policy='crop_flip'):
  """Three classes of random images; those of a class share their top left value."""
  class_ids = np.arange(24, dtype=np.int32) % 3
  images = np.random.default_rng(0).integers(256, size=[24, 8, 9, 3], dtype=np.uint8)
  images[:, 0, 0, 0] = class_ids
  split = images, class_ids
  return splits.from_arrays(split, split, augmentation_policy=policy)


def taken(data, count):
  return list(data.take(count).as_numpy_iterator())


def test_episodes_are_those_of_the_sampler_with_the_augmentation_of_the_data_set():
  data = colored()
  sampler = episodes.EpisodeSampler(data.train.class_ids, 2, 3 + 4, seed=5)
  expected = episodes.episode_dataset(
      data.train.images, sampler, 2, augmentation_policy='crop_flip')
  stream = data.episodes(3, 4, num_ways=2, episodes_per_step=2, seed=5)
  assert stream.element_spec == tf.TensorSpec([2, 2, 7, 8, 9, 3], tf.uint8)
  np.testing.assert_array_equal(taken(stream, 3), taken(expected, 3))


def test_episodes_have_all_classes_and_one_episode_per_step_by_default():
  (step,) = taken(colored('none').episodes(2, 1), 1)
  assert step.shape == (1, 3, 3, 8, 9, 3)
  marks = step[0, :, :, 0, 0, 0]
  assert (marks == marks[:, :1]).all() and set(marks[:, 0]) == {0, 1, 2}


def test_episodes_resume_at_any_step():
  stream = lambda start: colored().episodes(1, 2, episodes_per_step=3, start=start)
  np.testing.assert_array_equal(taken(stream(0), 6)[4:], taken(stream(4), 2))


def test_episodes_and_batches_are_of_the_train_split_alone():
  data = splits.from_arrays(TRAIN, TEST, validation_size=40)
  pixels = np.concatenate([
      np.concatenate(taken(data.episodes(50, 40), 5)).reshape(-1, 2),
      np.concatenate([x for x, _ in taken(data.training_batches(36), 10)]).reshape(
          -1, 2)])
  seen = set(pixels[:, 0].astype(int) * 256 + pixels[:, 1])
  assert seen == set(numbers(data.train))


def test_training_batches_are_shuffled_with_the_augmentation_of_the_data_set():
  data = colored()
  expected = batches.batch_dataset(
      data.train.images, data.train.class_ids, 5, 7, augmentation_policy='crop_flip')
  stream = data.training_batches(5, seed=7)
  assert stream.element_spec == (
      tf.TensorSpec([5, 8, 9, 3], tf.uint8), tf.TensorSpec([5], tf.int32))
  for batch, expected_batch in zip(taken(stream, 6), taken(expected, 6), strict=True):
    np.testing.assert_array_equal(batch[0], expected_batch[0])
    np.testing.assert_array_equal(batch[1], expected_batch[1])


def test_training_batches_resume_at_any_step():
  whole = taken(colored().training_batches(5), 7)[6]
  (resumed,) = taken(colored().training_batches(5, start=6), 1)
  np.testing.assert_array_equal(whole[0], resumed[0])
  np.testing.assert_array_equal(whole[1], resumed[1])


def test_vectors_can_stand_in_for_images():
  class_ids = np.arange(12, dtype=np.int32) % 3
  split = splits.Split(np.eye(12, dtype=np.float32), class_ids)
  data = splits.Dataset(split, split, split, split, ('a', 'b', 'c'))
  (step,) = taken(data.episodes(1, 2), 1)
  assert step.shape == (1, 3, 3, 12)
  rows = step.argmax(axis=-1)[0] % 3
  assert (rows == rows[:, :1]).all()
  vectors, ids = taken(data.training_batches(4), 1)[0]
  np.testing.assert_array_equal(vectors.argmax(axis=-1) % 3, ids)


def test_the_fingerprint_depends_on_the_content_alone():
  data = splits.from_arrays(TRAIN, TEST, 'abc', 40)
  reversed_train = TRAIN[0][::-1].copy()[::-1], TRAIN[1].astype(np.int64)
  copy = splits.from_arrays(reversed_train, TEST, ['a', 'b', 'c'], 40)
  assert data.fingerprint == copy.fingerprint
  assert len(data.fingerprint) == 32 and int(data.fingerprint, 16)


def changed(array, place, value):
  array = array.copy()
  array[place] = value
  return array


@pytest.mark.parametrize('change', [
    {'train': (changed(TRAIN[0], (399, 0, 1, 0), 0), TRAIN[1])},
    {'train': (TRAIN[0], changed(TRAIN[1], 0, 1))},
    {'test': (changed(TEST[0], (0, 0, 0, 0), 9), TEST[1])},
    {'test': (TEST[0], changed(TEST[1], 5, 0))},
    {'test': (TEST[0][:-1], TEST[1][:-1])},
    {'train': (TRAIN[0].reshape(-1, 2, 1, 1), TRAIN[1]),
     'test': (TEST[0].reshape(-1, 2, 1, 1), TEST[1])},
    {'class_names': ['a', 'b', 'd']},
    {'class_names': ['ab', '', 'c']},
    {'validation_size': 41},
    {'threshold_size': 20},
    {'train_size': 300},
    {'seed': 1},
])
def test_the_fingerprint_changes_with_any_content(change):
  original = {'train': TRAIN, 'test': TEST, 'class_names': 'abc', 'validation_size': 40}
  assert (splits.from_arrays(**original).fingerprint
          != splits.from_arrays(**{**original, **change}).fingerprint)


def test_the_fingerprint_tells_splits_apart():
  data = splits.from_arrays(TRAIN, TEST, validation_size=40)
  swapped = dataclasses.replace(data, validation=data.test, test=data.validation)
  moved = dataclasses.replace(
      data, validation=data.threshold, threshold=data.validation)
  assert len({data.fingerprint, swapped.fingerprint, moved.fingerprint}) == 3
  # The boundary moves between two splits; the sequence of images stays the same.
  a, b = (dataclasses.replace(
      data, validation=splits.Split(TEST[0][:cut], TEST[1][:cut]),
      test=splits.Split(TEST[0][cut:], TEST[1][cut:])) for cut in (2, 3))
  assert a.fingerprint != b.fingerprint
