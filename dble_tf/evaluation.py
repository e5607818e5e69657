"""A trained model and a split -> predictions -> one dictionary of figures."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from dble_tf import metrics
from dble_tf import prototypes
from dble_tf.classifier import Classifier
from dble_tf.datasets import Split

Predictions = dict[str, np.ndarray]


def predict(
    model: Classifier, split: Split, batch_size: int, verbose: int = 0
) -> Predictions:
  """Predicts every image of a split.

  Returns:
    label, confidence, probabilities: [n], [n] and [n, M].
    true_label: [n].

    And of a DBLE:
    distance_to_true: [n], d_t (Eq. 7).
    distance_to_predicted: [n], d'_t.
    sigma_mean: [n], sigma averaged over the representation's dimensions.
    distances: [n, M], to every center.
  """
  outputs = model.predict(split.images, batch_size=batch_size, verbose=verbose)
  predictions = {
      'label': outputs['label'],
      'confidence': outputs['confidence'],
      'probabilities': outputs['probabilities'],
      'true_label': split.class_ids,
  }
  if 'distances' not in outputs:
    return predictions
  rows = np.arange(len(split))
  return {
      **predictions,
      'distance_to_true': outputs['distances'][rows, split.class_ids],
      'distance_to_predicted': outputs['distance'],
      'sigma_mean': outputs['sigma'].mean(axis=-1),
      'distances': outputs['distances'],
  }


def without_sigma(predictions: Predictions) -> Predictions:
  """The same predictions with sigma = 0: the plain prototypical softmax (Eq. 3)."""
  probabilities = tf.exp(
      prototypes.log_likelihoods(tf.constant(predictions['distances']))).numpy()
  rows = np.arange(len(probabilities))
  return {
      **predictions,
      'confidence': probabilities[rows, predictions['label']],
      'probabilities': probabilities,
      'sigma_mean': np.zeros_like(predictions['sigma_mean']),
  }


def figures(predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Accuracy, ECE (15 bins) and NLL, the first two as fractions."""
  is_correct = predictions['label'] == predictions['true_label']
  bins = metrics.calibration_bins(is_correct, predictions['confidence'])
  nll = metrics.negative_log_likelihoods(
      predictions['true_label'], predictions['probabilities'])
  return {
      'accuracy': float(is_correct.mean()),
      'ece': float(metrics.expected_calibration_error(bins)),
      'nll': float(tf.reduce_mean(nll)),
  }
