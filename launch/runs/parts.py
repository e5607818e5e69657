"""The contribution of each part of a DBLE: its figures with other kinds of sigma.

All from one trained model, whose encoder does not depend on its confidence model.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dble_tf import calibration
from dble_tf import evaluation
from dble_tf import prototypes
from dble_tf.classifier import Representations
from dble_tf.model import DBLE


class Part(NamedTuple):
  """One kind of sigma with one scaling.

  Attributes:
    sigma: 'none', 'constant' (1 everywhere) or 'learned'.
    scaling: what was fitted on the validation split: 'temperature' alone, or one of
      `calibration.SCALINGS`.
    sigma_scale: alpha.
    temperature: T.
    figures: by split.
    sigma_figures: of the test split.
  """

  sigma: str
  scaling: str
  sigma_scale: float
  temperature: float
  figures: dict[str, dict]
  sigma_figures: dict

  def as_json(self) -> dict:
    """An entry of metrics.json, with the figures of each split under its name."""
    content = self._asdict()
    figures = content.pop('figures')
    return {**content, **figures}


def compare(
    model: DBLE, representations: Mapping[str, Representations]) -> list[Part]:
  """Figures without sigma, with a constant one and with the learned one.

  Each kind of sigma comes as it is, and with what can be fitted on the validation
  split, if there is one.

  Args:
    model: calibrated, with a confidence model.
    representations: of the splits 'test' and 'validation'.
  """
  results = []
  for sigma, g in (('none', np.zeros_like), ('constant', np.ones_like),
                   ('learned', model.confidence_model)):
    data = {name: model.held_out(split, g) for name, split in representations.items()}
    for scaling, sigma_scale, temperature in _scalings(sigma, data.get('validation')):
      predictions = {name: _predict(split, sigma_scale, temperature)
                     for name, split in data.items()}
      results.append(Part(
          sigma, scaling, sigma_scale, temperature,
          {name: evaluation.figures(split) for name, split in predictions.items()},
          evaluation.sigma_figures(predictions['test'])))
  return results


def _scalings(sigma, validation) -> Iterator[tuple[str, float, float]]:
  """Scaling, alpha and T of each row of a kind of sigma."""
  if sigma == 'none':
    yield 'none', 0.0, 1.0
    if validation is not None:
      distances = prototypes.distances(validation.h, validation.centers).numpy()
      yield 'temperature', 0.0, calibration.fit_temperature(
          -distances, validation.class_ids)
    return
  if sigma == 'learned':  # A constant of 1 has no meaning of its own.
    yield 'none', 1.0, 1.0
  if validation is not None:
    for scaling in calibration.SCALINGS[1:]:
      fitted = calibration.fit(validation, scaling)
      yield scaling, fitted.sigma_scale, fitted.temperature


def _predict(data, sigma_scale, temperature) -> evaluation.Predictions:
  probabilities = data.probabilities(sigma_scale, temperature)
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
