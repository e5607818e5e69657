"""The answers of a finished run as a line of a table shows them, and their figures."""

import functools
import io
from typing import NamedTuple

import numpy as np
from etils import epath
from scipy import special

from dble_tf import calibration
from dble_tf import comparisons
from dble_tf import evaluation
from dble_tf.errors import UserError

from ..cli import invocation
from ..runs.workdir import Workdir
from .rows import Line

NUM_RESAMPLES = 1000
_SMALLEST = np.finfo(np.float32).tiny


class Measured(NamedTuple):
  """The figures of a run on test images.

  Attributes:
    resampled: figure -> [1 + R], of the images themselves and of R resamples.
    temperature: that was fitted, or None.
    ece_floor: mean and 95th percentile of the ECE of a perfectly calibrated model
      with the same confidences.
    num_images: the number of test images.
  """

  resampled: dict[str, np.ndarray]
  temperature: float | None
  ece_floor: tuple[float, float]
  num_images: int

  @property
  def figures(self) -> dict[str, float | None]:
    """The figures, of which failure_auroc can be None."""
    return {name: float(values[0]) if np.isfinite(values[0]) else None
            for name, values in self.resampled.items()}


def measure(run: epath.Path, line: Line) -> Measured:
  """Reads the answers in a run's directory and judges those on test images."""
  predictions, temperature = read(run, line, 'test')
  num_images = len(predictions['label'])
  return Measured(
      comparisons.resampled_figures(predictions, _counts(num_images)),
      temperature,
      comparisons.expected_ece(predictions['confidence'], np.random.default_rng(0)),
      num_images)


@functools.lru_cache(maxsize=1)
def _counts(num_images):
  """The same resamples for all lines and seeds."""
  return comparisons.resample(num_images, NUM_RESAMPLES, np.random.default_rng(0))


def read(
    run: epath.Path, line: Line, split: str
) -> tuple[evaluation.Predictions, float | None]:
  """Reads what a line shows of a run's answers.

  Args:
    run: the directory of a finished run.
    line: which probabilities, and whether with a temperature.
    split: 'test' or 'validation'.

  Returns:
    true_label, label and confidence, each [n], and probabilities [n, M]; score [n],
    where the method has one. Then the temperature, or None.
  """
  path = Workdir(run).predictions
  with np.load(io.BytesIO(path.read_bytes())) as arrays:
    predictions = _predictions(path, arrays, split, line.part)
    if not line.has_temperature:
      return predictions, None
    held_out = _predictions(path, arrays, 'validation', line.part)
  temperature = calibration.fit_temperature(
      _logits(held_out), held_out['true_label'])
  probabilities = special.softmax(_logits(predictions) / temperature, axis=1)
  return evaluation.with_probabilities(predictions, probabilities), temperature


def _predictions(path, arrays, split, part):
  """The arrays of a split, with the probabilities and confidences of a part."""
  try:
    predictions = {name: arrays[f'{split}_{name}'] for name in (
        'true_label', 'label', 'confidence', 'probabilities')}
    if f'{split}_score' in arrays:
      predictions['score'] = arrays[f'{split}_score']
    if part is None:
      return predictions
    return evaluation.with_probabilities(
        predictions, arrays[f'{split}_probabilities_{part}'])
  except KeyError as error:
    raise UserError(
        f'{path} is from another version ({error.args[0]}): write it again '
        f'with {invocation.typed("evaluate")} --workdir={path.parent}') from error


def _logits(predictions):
  return np.log(np.maximum(
      predictions['probabilities'].astype(np.float64), _SMALLEST))
