"""The handwritten digits of scikit-learn: 1,797 images of 8x8 pixels, no download."""

import numpy as np
from sklearn import datasets
from sklearn import model_selection

TEST_SIZE = 597


def load_arrays() -> tuple[tuple, tuple, list[str]]:
  """Returns train and test (images, class ids), and the class names.

  The data has no predefined test split: a stratified third of it, the same for every
  seed of a run, is the test split.
  """
  digits = datasets.load_digits()
  # Rescale the 17 gray levels, 0 to 16, to 0 to 255.
  images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
  train, test = model_selection.train_test_split(
      np.arange(len(images)), test_size=TEST_SIZE, random_state=0,
      stratify=digits.target)
  return ((images[train], digits.target[train]),
          (images[test], digits.target[test]),
          [str(name) for name in digits.target_names])
