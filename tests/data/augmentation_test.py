import numpy as np
import pytest

from dble_tf.data import augmentation
from dble_tf.errors import UserError

IMAGES = np.random.default_rng(0).integers(1, 256, size=[40, 6, 7, 3], dtype=np.uint8)


def crops(image):
  """Every crop of the image padded by 4, plain and flipped."""
  padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
  height, width, _ = image.shape
  for row in range(9):
    for column in range(9):
      crop = padded[row:row + height, column:column + width]
      yield row, column, False, crop
      yield row, column, True, crop[:, ::-1]


@pytest.mark.parametrize('shape', [[40, 6, 7, 3], [40, 126]])
def test_none_leaves_images_and_vectors_unchanged(shape):
  batch = IMAGES.reshape(shape)
  np.testing.assert_array_equal(augmentation.augment(batch, 'none', [0, 1]), batch)


def test_flip_flips_about_half_of_the_images():
  result = augmentation.augment(IMAGES, 'flip', [0, 1]).numpy()
  same = (result == IMAGES).all(axis=(1, 2, 3))
  flipped = (result == IMAGES[:, :, ::-1]).all(axis=(1, 2, 3))
  assert (same ^ flipped).all()
  assert 8 <= flipped.sum() <= 32  # 20 expected, plus or minus 3.8 deviations.


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


def test_augmentation_depends_on_the_seed_alone():
  first = augmentation.augment(IMAGES, 'crop_flip', [3, 4])
  np.testing.assert_array_equal(
      first, augmentation.augment(IMAGES, 'crop_flip', [3, 4]))
  assert not np.array_equal(
      first, augmentation.augment(IMAGES, 'crop_flip', [3, 5]))


def test_an_unknown_policy_names_the_known_ones():
  with pytest.raises(UserError, match='none, flip, crop_flip'):
    augmentation.augment(IMAGES, 'rotate', [0, 1])
