"""Finished runs without training: their predictions alone."""

import io

import numpy as np
from etils import epath
from scipy import special

from launch.runs.workdir import Workdir

PARTS = ('prototypical', 'as_printed', 'without_held_out')


def write(
    directory: epath.Path, seed: int = 0, skill: float = 1.0, sharpness: float = 1.0,
    num_images: int = 200, with_parts: bool = False, with_score: bool = False,
    with_validation: bool = True,
) -> dict[str, np.ndarray]:
  """Writes predictions.npz of classifiers of four classes.

  Args:
    directory: of the run.
    seed: of its noise; labels of images are always the same.
    skill: how much the logits know of the true label.
    sharpness: factor on the logits: 1 is close to calibrated.
    num_images: of each split.
    with_parts: whether the probabilities of DBLE's parts are there.
    with_score: whether there is a ranking score.
    with_validation: whether there is such a split.

  Returns:
    The arrays.
  """
  rng = np.random.default_rng(seed)
  arrays = {}
  for split in ('test', 'validation')[:1 + with_validation]:
    true_label = np.random.default_rng(len(split)).integers(4, size=num_images)
    logits = rng.normal(size=[num_images, 4])
    logits[np.arange(num_images), true_label] += skill
    logits *= skill
    label = logits.argmax(axis=1)
    probabilities = _softmax(sharpness * logits)
    arrays.update({
        f'{split}_true_label': true_label, f'{split}_label': label,
        f'{split}_probabilities': probabilities,
        f'{split}_confidence': probabilities[np.arange(num_images), label]})
    if with_parts:
      arrays.update({f'{split}_probabilities_{part}': _softmax(factor * logits)
                     for part, factor in zip(PARTS, (0.5, 0.7, 0.9))})
    if with_score:
      arrays[f'{split}_score'] = rng.normal(size=num_images)
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  directory.mkdir(parents=True, exist_ok=True)
  Workdir(directory).predictions.write_bytes(buffer.getvalue())
  return arrays


def _softmax(logits):
  return special.softmax(logits, axis=1).astype(np.float32)
