import numpy as np
import pytest

from dble_tf.data import augmentation
from dble_tf.errors import UserError

IMAGES = np.random.default_rng(0).integers(1, 256, size=[40, 6, 7, 3], dtype=np.uint8)


def crops(image):
  """Every crop of the image padded by 4, each also mirrored."""
  padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
  height, width, _ = image.shape
  for row in range(9):
    for column in range(9):
      crop = padded[row:row + height, column:column + width]
      yield row, column, False, crop
      yield row, column, True, crop[:, ::-1]


def test_none_leaves_images_alone():
  np.testing.assert_array_equal(
      augmentation.augment(IMAGES, 'none', [0, 1]), IMAGES)


def test_flip_mirrors_about_half_of_the_images():
  result = augmentation.augment(IMAGES, 'flip', [0, 1]).numpy()
  same = (result == IMAGES).all(axis=(1, 2, 3))
  mirrored = (result == IMAGES[:, :, ::-1]).all(axis=(1, 2, 3))
  assert (same ^ mirrored).all()
  assert 8 <= mirrored.sum() <= 32  # 20 expected; beyond 3.8 deviations fails.


def test_crop_flip_cuts_each_image_from_its_own_padded_self():
  result = augmentation.augment(IMAGES, 'crop_flip', [0, 1]).numpy()
  assert result.dtype == np.uint8
  found = []
  for image, augmented in zip(IMAGES, result):
    matches = [place for *place, crop in crops(image)
               if np.array_equal(crop, augmented)]
    assert len(matches) == 1
    found.append(tuple(matches[0]))
  rows, columns, flips = zip(*found)
  assert len(set(rows)) >= 7 and len(set(columns)) >= 7 and len(set(flips)) == 2


def test_the_same_seed_augments_alike():
  first = augmentation.augment(IMAGES, 'crop_flip', [3, 4])
  np.testing.assert_array_equal(
      first, augmentation.augment(IMAGES, 'crop_flip', [3, 4]))
  assert not np.array_equal(
      first, augmentation.augment(IMAGES, 'crop_flip', [3, 5]))


def test_an_unknown_policy_names_the_known_ones():
  with pytest.raises(UserError, match='none, flip, crop_flip'):
    augmentation.augment(IMAGES, 'rotate', [0, 1])


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
