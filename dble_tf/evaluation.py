"""A trained model and a split -> predictions -> one dictionary of figures."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from scipy import stats

from dble_tf import metrics
from dble_tf.classifier import Classifier
from dble_tf.data import Split

Predictions = dict[str, np.ndarray]


def predict(
    model: Classifier, split: Split, batch_size: int, verbose: int = 0
) -> Predictions:
  """Predicts every image of a split.

  Returns:
    label, confidence, probabilities: [n], [n] and [n, M].
    true_label: [n].

    Where the method has class centers:
    distance_to_true: [n], d_t (Eq. 7).
    distance_to_predicted: [n], d'_t.

    Where it has sigma:
    sigma_mean: [n], sigma averaged over its dimensions.
    logits: [n, M], negative distances or logits: their softmax is what the
      probabilities would be without sigma.

    Where its confidence comes from a score of another kind:
    score: [n].
  """
  outputs = model.predict(split.images, batch_size=batch_size, verbose=verbose)
  predictions = {
      'label': outputs['label'],
      'confidence': outputs['confidence'],
      'probabilities': outputs['probabilities'],
      'true_label': split.class_ids,
  }
  if 'distances' in outputs:
    rows = np.arange(len(split))
    predictions['distance_to_true'] = outputs['distances'][rows, split.class_ids]
    predictions['distance_to_predicted'] = outputs['distance']
  if 'sigma' in outputs:
    predictions['sigma_mean'] = outputs['sigma'].mean(axis=-1)
    predictions['logits'] = (
        -outputs['distances'] if 'distances' in outputs else outputs['logits'])
  if 'score' in outputs:
    predictions['score'] = outputs['score']
  return predictions


def without_sigma(predictions: Predictions) -> Predictions:
  """The same labels without sigma and temperature: of a DBLE the softmax of Eq. 3."""
  probabilities = tf.nn.softmax(predictions['logits']).numpy()
  rows = np.arange(len(probabilities))
  return {
      **predictions,
      'confidence': probabilities[rows, predictions['label']],
      'probabilities': probabilities,
      'sigma_mean': np.zeros_like(predictions['sigma_mean']),
  }


def figures(predictions: Mapping[str, np.ndarray]) -> dict[str, float | None]:
  """Accuracy and ECE (15 bins) as fractions, NLL, Brier score, failure AUROC and AURC.

  The last two, which judge an order, take a score where the method has one, and the
  confidence where it has none.
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
  """How sigma, averaged over its dimensions, differs between images.

  Returns:
    mean: over all images.
    mean_of_right, mean_of_wrong: over right and wrong predictions; None without any.
    rank_correlation: Spearman's, of sigma with d_t, which sigma is meant to follow;
      None where there are no distances, or sigma is the same for all.
  """
  sigma = predictions['sigma_mean'].astype(np.float64)
  is_correct = predictions['label'] == predictions['true_label']
  correlation = None
  if 'distance_to_true' in predictions and np.ptp(sigma) > 0:
    correlation = float(
        stats.spearmanr(sigma, predictions['distance_to_true']).statistic)
  return {
      'mean': float(sigma.mean()),
      'mean_of_right': float(sigma[is_correct].mean()) if is_correct.any() else None,
      'mean_of_wrong': float(sigma[~is_correct].mean()) if not is_correct.all() else None,
      'rank_correlation': correlation,
  }
