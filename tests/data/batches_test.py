import numpy as np
import pytest
import tensorflow as tf

from dble_tf.data import batches
from dble_tf.errors import UserError

IMAGES = np.arange(23, dtype=np.uint8).reshape(-1, 1, 1, 1)
CLASS_IDS = np.arange(23, dtype=np.int32) % 4


def stream(seed=0, start=0, batch_size=5, count=9):
  data = batches.batch_dataset(IMAGES, CLASS_IDS, batch_size, seed, start)
  return [(images.reshape(-1), ids)
          for images, ids in data.take(count).as_numpy_iterator()]


def test_a_pass_over_the_data_has_no_image_twice_and_keeps_labels():
  first_pass = stream(count=4)
  drawn = np.concatenate([images for images, _ in first_pass])
  assert len(drawn) == len(set(drawn)) == 20
  for images, ids in first_pass:
    np.testing.assert_array_equal(ids, images % 4)


def test_passes_differ_in_order_and_in_the_images_dropped():
  drawn = [np.concatenate([images for images, _ in stream(start=4 * i, count=4)])
           for i in range(30)]
  assert len({tuple(images) for images in drawn}) == 30
  assert set(np.concatenate(drawn)) == set(range(23))


@pytest.mark.parametrize('start', [0, 1, 4, 6])
def test_a_stream_resumes_at_any_batch(start):
  whole, resumed = stream(count=9), stream(start=start, count=9 - start)
  for (images, ids), (resumed_images, resumed_ids) in zip(whole[start:], resumed):
    np.testing.assert_array_equal(images, resumed_images)
    np.testing.assert_array_equal(ids, resumed_ids)


def test_each_seed_has_its_own_order():
  assert not np.array_equal(stream(seed=0)[0][0], stream(seed=1)[0][0])


def test_augmentation_repeats_with_the_batch_and_varies_between_images():
  images = np.tile(np.random.default_rng(0).integers(
      256, size=[1, 8, 8, 3], dtype=np.uint8), [6, 1, 1, 1])
  data = batches.batch_dataset(
      images, np.zeros(6, np.int32), 3, seed=0, augmentation_policy='crop_flip')
  once, again = ([x for x, _ in data.take(4).as_numpy_iterator()] for _ in range(2))
  np.testing.assert_array_equal(once, again)
  assert len({image.tobytes() for image in np.concatenate(once)}) > 6


def test_batches_have_a_static_shape():
  data = batches.batch_dataset(IMAGES, CLASS_IDS, 5, seed=0)
  assert data.element_spec == (
      tf.TensorSpec([5, 1, 1, 1], tf.uint8), tf.TensorSpec([5], tf.int32))


@pytest.mark.parametrize('batch_size', [0, 24])
def test_a_batch_that_is_empty_or_larger_than_the_data_is_refused(batch_size):
  with pytest.raises(UserError, match=f'{batch_size} images from 23'):
    batches.batch_dataset(IMAGES, CLASS_IDS, batch_size, seed=0)
