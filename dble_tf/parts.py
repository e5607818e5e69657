"""What each part of a DBLE contributes: its figures with other kinds of sigma.

All from one trained model, whose encoder and candidates do not depend on each other.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from dble_tf import evaluation
from dble_tf import prototypes
from dble_tf import scaling
from dble_tf.model import DBLE


def compare(
    model: DBLE,
    names: Sequence[str],
    splits: Mapping[str, tf.data.Dataset],
    verbose: int = 0,
) -> list[dict]:
  """Figures without sigma, with a constant one and with each candidate's.

  Each kind of sigma comes as it is, and with what can be fitted on the validation
  split, if there is one. A candidate that learned from one half of that split is fitted
  on the other, and its validation figures are of that half.

  Args:
    model: with class centers, and trained.
    names: of its candidates.
    splits: 'test' and 'validation' -> batches of (images, class ids).
    verbose: 1 shows progress bars.

  Returns:
    Dictionaries with sigma (a name), scaling, sigma_scale, temperature, and for each
    split its figures.
  """
  encoded = {name: model.encode_labelled(batches, verbose)
             for name, batches in splits.items()}
  results = []
  for sigma_name, g, training in _kinds_of_sigma(model, names):
    data = {
        split: (model.scaling_data(h, class_ids, g, training) if split == 'validation'
                else model.with_centers(h, class_ids, g))
        for split, (h, class_ids) in encoded.items()}
    for scaling_name, fitted in _scalings(sigma_name, data.get('validation')):
      results.append({
          'sigma': sigma_name, 'scaling': scaling_name,
          'sigma_scale': fitted.sigma_scale, 'temperature': fitted.temperature,
          **{split: evaluation.figures(_predict(some, fitted))
             for split, some in data.items()}})
  return results


def _kinds_of_sigma(model, names):
  """Names, functions h -> sigma, and what they learned from."""
  yield 'none', np.zeros_like, 'errors'
  if 'constant' not in names:
    yield 'constant', np.ones_like, 'errors'
  yield from zip(names, model.candidates, model.confidence_training, strict=True)


def _scalings(sigma_name, validation) -> Iterator[tuple[str, scaling.Fitted]]:
  if sigma_name == 'none':
    yield 'none', scaling.Fitted(0.0, 1.0, np.nan)
    if validation is not None:
      yield 'temperature', scaling.fit_temperature(
          lambda temperature: validation.nll(0.0, temperature))
    return
  for name in scaling.SCALINGS:
    # A constant of 1 has no meaning of its own.
    if name == 'none' and sigma_name != 'constant':
      yield name, scaling.Fitted(1.0, 1.0, np.nan)
    elif name != 'none' and validation is not None:
      yield name, scaling.fit(validation, name)


def _predict(data, fitted) -> evaluation.Predictions:
  probabilities = data.probabilities(fitted.sigma_scale, fitted.temperature)
  label = prototypes.predicted_labels(
      prototypes.distances(data.h, data.centers)).numpy()
  return {
      'label': label,
      'confidence': probabilities[np.arange(len(label)), label],
      'probabilities': probabilities,
      'true_label': data.class_ids,
  }
