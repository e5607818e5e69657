"""The contribution of each part of a DBLE: the same labels with other kinds of sigma.

All from one trained model, whose encoder does not depend on its confidence model.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dble_tf import calibration
from dble_tf import prototypes
from dble_tf.classifier import Representations
from dble_tf.model import DBLE


class Part(NamedTuple):
  """One kind of sigma.

  Attributes:
    sigma_scale: alpha; None without sigma.
    temperature: T.
    probabilities: [n, M], by split.
  """

  sigma_scale: float | None
  temperature: float
  probabilities: dict[str, np.ndarray]


def compare(
    model: DBLE, representations: Mapping[str, Representations]) -> dict[str, Part]:
  """Probabilities with other kinds of sigma than the model's own.

  Args:
    model: calibrated, with a confidence model.
    representations: by split.

  Returns:
    prototypical: no sigma: the softmax that theta has learned with (Eq. 3).
    constant: sigma is 1 everywhere, alpha and T fitted as for the model's own; where
      there are validation images.
    as_printed: sigma as learned, not scaled.
    without_held_out: alpha is the center of its prior.
  """
  learned, constant = (
      {name: model.held_out(split, g) for name, split in representations.items()}
      for g in (model.confidence_model, np.ones_like))
  parts = {'prototypical': Part(None, 1.0, {
      name: _without_sigma(model, split) for name, split in learned.items()})}
  if 'validation' in constant:
    # A constant of 1 has no meaning of its own, so its prior says nothing.
    fitted = calibration.fit(
        constant['validation'], calibration.Prior(1.0, width=10.0))
    parts['constant'] = _part(constant, fitted.sigma_scale, fitted.temperature)
  parts['as_printed'] = _part(learned, 1.0, 1.0)
  parts['without_held_out'] = _part(learned, calibration.PRIOR.center, 1.0)
  return parts


def _part(data, sigma_scale, temperature):
  return Part(sigma_scale, temperature, {
      name: split.probabilities(sigma_scale, temperature)
      for name, split in data.items()})


def _without_sigma(model, data):
  return model.softmax_of(prototypes.distances(data.h, data.centers)).numpy()
