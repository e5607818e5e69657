"""What each part of a DBLE contributes: its figures with other kinds of sigma.

All from one trained model, whose encoder and candidates do not depend on each other.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from dble_tf import evaluation
from dble_tf import prototypes
from dble_tf import calibration
from dble_tf.model import DBLE


def compare(
    model: DBLE,
    names: Sequence[str],
    splits: Mapping[str, tf.data.Dataset],
    verbose: int = 0,
) -> list[dict]:
  """Figures without sigma, with a constant one and with each candidate's.

  Each kind of sigma comes as it is, and with what can be fitted on the validation
  split, if there is one. Where a candidate learned from one half of that split, all
  validation figures are of the other.

  Args:
    model: with class centers, and trained.
    names: of its candidates.
    splits: 'test' and 'validation' -> batches of (images, class ids).
    verbose: 1 shows progress bars.

  Returns:
    Dictionaries with sigma (a name), scaling, sigma_scale, temperature, for each split
    its figures, and of the test split those of sigma, as it is without scaling.
  """
  encoded = {name: model.encode_labelled(batches, verbose)
             for name, batches in splits.items()}
  results = []
  for sigma_name, g, training in _kinds_of_sigma(model, names):
    data = {split: model.with_centers(h, class_ids, g)
            for split, (h, class_ids) in encoded.items()}
    scaled_on = None
    if 'validation' in data:
      scaled_on, data['validation'] = model.held_out_data(
          *encoded['validation'], g, training)
    for scaling_name, fitted in _scalings(
        sigma_name, is_candidate=training is not None, validation=scaled_on):
      predictions = {split: _predict(some, fitted) for split, some in data.items()}
      results.append({
          'sigma': sigma_name, 'scaling': scaling_name,
          'sigma_scale': fitted.sigma_scale, 'temperature': fitted.temperature,
          **{split: evaluation.figures(some) for split, some in predictions.items()},
          'sigma_figures': evaluation.sigma_figures(predictions['test'])})
  return results


def _kinds_of_sigma(model, names):
  """Names, functions h -> sigma, and what they learned from."""
  yield 'none', np.zeros_like, None
  if 'constant' not in names:
    yield 'constant', np.ones_like, None
  yield from zip(names, model.candidates, model.confidence_training, strict=True)


def _scalings(
    sigma_name, is_candidate, validation) -> Iterator[tuple[str, calibration.Fitted]]:
  if sigma_name == 'none':
    yield 'none', calibration.NO_SIGMA
    if validation is not None:
      yield 'temperature', calibration.fit_temperature(
          lambda temperature: validation.nll(0.0, temperature))
    return
  for name in calibration.SCALINGS:
    # The constant that is compared anyway is 1, which has no meaning of its own.
    if name == 'none' and is_candidate:
      yield name, calibration.Fitted(1.0, 1.0, np.nan)
    elif name != 'none' and validation is not None:
      yield name, calibration.fit(validation, name)


def _predict(data, fitted) -> evaluation.Predictions:
  probabilities = data.probabilities(fitted.sigma_scale, fitted.temperature)
  distances = prototypes.distances(data.h, data.centers)
  label = prototypes.predicted_labels(distances).numpy()
  rows = np.arange(len(label))
  return {
      'label': label,
      'confidence': probabilities[rows, label],
      'probabilities': probabilities,
      'true_label': data.class_ids,
      'distance_to_true': distances.numpy()[rows, data.class_ids],
      'sigma_mean': data.sigma.mean(axis=-1),
  }
