import numpy as np
from sklearn import datasets as sklearn_datasets

from dble_tf.data import digits


def test_train_and_test_are_all_digits_once_with_their_labels():
  original = sklearn_datasets.load_digits()
  (train_images, train_ids), (test_images, test_ids), names = digits.load_arrays()
  assert train_images.shape == (1200, 8, 8, 1) and test_images.shape == (597, 8, 8, 1)
  assert train_images.dtype == np.uint8
  rows = lambda images, ids: sorted(
      (int(i), *image.ravel().astype(int)) for image, i in zip(images, ids))
  ours = rows(np.concatenate([train_images, test_images]),
              np.concatenate([train_ids, test_ids]))
  assert ours == rows((original.images * 255 / 16).round(), original.target)
  assert names == list('0123456789')


def test_the_test_split_is_stratified():
  _, (_, test_ids), _ = digits.load_arrays()
  counts = np.bincount(test_ids)
  assert counts.min() >= 57 and counts.max() <= 62
