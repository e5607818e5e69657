"""Encoded images -> predictions -> one dictionary of figures."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from scipy import stats

from dble_tf import metrics
from dble_tf.classifier import Classifier
from dble_tf.classifier import Representations

Predictions = dict[str, np.ndarray]


def predict(model: Classifier, representations: Representations) -> Predictions:
  """Answers encoded images.

  Returns:
    label, confidence, probabilities: [n], [n] and [n, M].
    true_label: [n].

    Of methods with class centers:
    distance_to_true: [n], d_t (Eq. 7).
    distance_to_predicted: [n], d'_t.

    Of methods with sigma:
    sigma_mean: [n], sigma averaged over its dimensions.

    Of methods whose confidence comes from another kind of score:
    score: [n].
  """
  h, class_ids = representations
  outputs = model.predict_from(h)
  predictions = {
      'label': outputs['label'],
      'confidence': outputs['confidence'],
      'probabilities': outputs['probabilities'],
      'true_label': class_ids,
  }
  if 'distances' in outputs:
    rows = np.arange(len(class_ids))
    predictions['distance_to_true'] = outputs['distances'][rows, class_ids]
    predictions['distance_to_predicted'] = outputs['distance']
  if 'sigma' in outputs:
    predictions['sigma_mean'] = outputs['sigma'].mean(axis=-1)
  if 'score' in outputs:
    predictions['score'] = outputs['score']
  return predictions


def with_probabilities(
    predictions: Predictions, probabilities: np.ndarray) -> Predictions:
  """The same labels with other probabilities [n, M], and confidences from these."""
  rows = np.arange(len(probabilities))
  return {
      **predictions,
      'confidence': probabilities[rows, predictions['label']],
      'probabilities': probabilities,
  }


def figures(predictions: Mapping[str, np.ndarray]) -> dict[str, float | None]:
  """Accuracy and ECE (15 bins) as fractions, NLL, Brier score, failure AUROC and AURC.

  The last two judge an order: of the method's own score where it has one, else of the
  confidence.
  """
  is_correct = predictions['label'] == predictions['true_label']
  bins = metrics.calibration_bins(is_correct, predictions['confidence'])
  nll = metrics.negative_log_likelihoods(
      predictions['true_label'], predictions['probabilities'])
  scores = predictions.get('score', predictions['confidence'])
  return {
      'accuracy': float(is_correct.mean()),
      'ece': float(metrics.expected_calibration_error(bins)),
      'nll': float(tf.reduce_mean(nll)),
      'brier': metrics.brier_score(
          predictions['true_label'], predictions['probabilities']),
      'failure_auroc': metrics.failure_auroc(is_correct, scores),
      'aurc': metrics.area_under_risk_coverage(is_correct, scores),
  }


def sigma_figures(predictions: Predictions) -> dict[str, float | None]:
  """Differences of sigma, averaged over its dimensions, between images.

  Returns:
    mean: over all images.
    mean_of_right, mean_of_wrong: over right and wrong predictions; None without any.
    rank_correlation: Spearman's, of sigma with d_t, which sigma is meant to follow;
      None without distances, or where sigma is the same for all images.
  """
  sigma = predictions['sigma_mean'].astype(np.float64)
  is_correct = predictions['label'] == predictions['true_label']
  correlation = None
  if 'distance_to_true' in predictions and np.ptp(sigma) > 0:
    correlation = float(
        stats.spearmanr(sigma, predictions['distance_to_true']).statistic)
  right, wrong = sigma[is_correct], sigma[~is_correct]
  return {
      'mean': float(sigma.mean()),
      'mean_of_right': float(right.mean()) if right.size else None,
      'mean_of_wrong': float(wrong.mean()) if wrong.size else None,
      'rank_correlation': correlation,
  }
