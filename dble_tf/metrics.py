"""Calibration metrics: pure functions, and thin Keras metrics around them.

A prediction is a label, a confidence and probabilities: with DBLE the label
comes from h and the confidence from sampled representations, so the label is
not always the argmax of the probabilities.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn import metrics as sklearn_metrics


def calibration_bins(
    is_correct: tf.Tensor,
    confidence: tf.Tensor,
    num_bins: int = 15,
    sample_weight: tf.Tensor | None = None,
) -> tf.Tensor:
  """Sums over the equally spaced bins (l/L, (l+1)/L] of confidence.

  Confidence 0 counts in the first bin, 1 in the last.

  Args:
    is_correct: [n] booleans.
    confidence: [n] in [0, 1].
    num_bins: L.
    sample_weight: [n] weights, all 1 where none are given.

  Returns:
    [3, L] float32: per bin the sums of weights, confidences and correctness.
  """
  confidence = tf.cast(confidence, tf.float32)
  is_correct = tf.cast(is_correct, tf.float32)
  if sample_weight is None:
    sample_weight = tf.ones_like(confidence)
  sample_weight = tf.cast(sample_weight, tf.float32)
  bins = tf.cast(tf.math.ceil(confidence * num_bins), tf.int32) - 1
  bins = tf.clip_by_value(bins, 0, num_bins - 1)
  values = tf.stack([tf.ones_like(confidence), confidence, is_correct], axis=1)
  return tf.transpose(tf.math.unsorted_segment_sum(
      sample_weight[:, tf.newaxis] * values, bins, num_bins))


def expected_calibration_error(bins: tf.Tensor) -> tf.Tensor:
  """Eq. 11, as a fraction, from the [3, L] sums of `calibration_bins`.

  >>> bins = calibration_bins([True, False], [0.9, 0.6])
  >>> f'{expected_calibration_error(bins):.2f}'  # (|0.9 - 1| + |0.6 - 0|) / 2
  '0.35'
  """
  weights, confidences, corrects = tf.unstack(bins)
  return tf.math.divide_no_nan(
      tf.reduce_sum(tf.abs(confidences - corrects)), tf.reduce_sum(weights))


def negative_log_likelihoods(
    class_ids: tf.Tensor, probabilities: tf.Tensor
) -> tf.Tensor:
  """The terms of Eq. 12: -log p(y_t | x_t), [n] and [n, M] -> [n] float32.

  A probability of zero counts as the smallest normal number.
  """
  probabilities = tf.cast(probabilities, tf.float32)
  true_class = tf.gather(probabilities, class_ids, axis=1, batch_dims=1)
  return -tf.math.log(tf.maximum(true_class, np.finfo(np.float32).tiny))


def brier_score(class_ids: np.ndarray, probabilities: np.ndarray) -> float:
  """Mean squared distance of probabilities [n, M] from the one-hot truth: 0 to 2.

  >>> f'{brier_score(np.array([0]), np.array([[0.8, 0.2]])):.2f}'  # 0.2^2 + 0.2^2
  '0.08'
  """
  is_true_class = np.arange(probabilities.shape[1]) == np.asarray(class_ids)[:, None]
  return float(np.square(probabilities - is_true_class).sum(axis=1).mean())


def failure_auroc(is_correct: np.ndarray, scores: np.ndarray) -> float | None:
  """How often a wrong prediction's score is below a right one's, ties counting half.

  Args:
    is_correct: [n] booleans.
    scores: [n], the higher the surer: a confidence, or any other order.

  Returns:
    The area under the ROC curve; None where all are right, or all wrong.
  """
  if np.all(is_correct) or not np.any(is_correct):
    return None
  return float(sklearn_metrics.roc_auc_score(is_correct, scores))


def area_under_risk_coverage(is_correct: np.ndarray, scores: np.ndarray) -> float:
  """The mean over all coverages of the error rate among the surest predictions.

  Among equal scores the order is random: each counts as their mean.

  >>> scores = np.array([0.9, 0.8, 0.7])
  >>> area = area_under_risk_coverage(np.array([True, True, False]), scores)
  >>> f'{area:.4f}'  # (0 + 0 + 1/3) / 3
  '0.1111'
  """
  _, groups = np.unique(-np.asarray(scores), return_inverse=True)
  sizes = np.bincount(groups)
  errors = np.bincount(groups, weights=~np.asarray(is_correct)) / sizes
  risks = np.cumsum(np.repeat(errors, sizes)) / np.arange(1, len(groups) + 1)
  return float(risks.mean())


@keras.saving.register_keras_serializable(package='dble_tf')
class ExpectedCalibrationError(keras.metrics.Metric):
  """Streaming Eq. 11: exact over any batching."""

  def __init__(self, num_bins: int = 15, name: str = 'ece', **kwargs):
    super().__init__(name=name, **kwargs)
    self.num_bins = num_bins
    self.bins = self.add_variable(
        [3, num_bins], initializer='zeros', name='bins')

  def update_state(self, is_correct, confidence, sample_weight=None):
    self.bins.assign_add(
        calibration_bins(is_correct, confidence, self.num_bins, sample_weight))

  def result(self):
    return expected_calibration_error(tf.convert_to_tensor(self.bins))

  def get_config(self):
    return {**super().get_config(), 'num_bins': self.num_bins}
