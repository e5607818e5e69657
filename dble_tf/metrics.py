"""Metrics of calibration and failure prediction: pure functions, and a Keras metric.

A prediction is a label, a confidence and probabilities. DBLE takes the label from h
(Eq. 6) and the confidence from sampled representations (Eq. 10), so the label is not
always the argmax of the probabilities.
"""

import keras
import numpy as np
import tensorflow as tf


def calibration_bins(
    is_correct: tf.Tensor,
    confidence: tf.Tensor,
    num_bins: int = 15,
    sample_weight: tf.Tensor | None = None,
) -> tf.Tensor:
  """Sums weight, confidence and correctness over bins (l/L, (l+1)/L] of confidence.

  Confidence 0 falls into the first bin.

  Args:
    is_correct: [n] booleans.
    confidence: [n] in [0, 1].
    num_bins: L.
    sample_weight: [n] weights; all 1 if None.

  Returns:
    [3, L] float32: per bin the weighted sums of 1, confidence and correctness.
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
  """Computes Eq. 11, as a fraction, from the [3, L] sums of `calibration_bins`.

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
  """Computes the terms of Eq. 12, -log p(y_t | x_t): [n], [n, M] -> [n] float32.

  Probabilities are clamped to the smallest normal float32, so that the result is
  finite.
  """
  probabilities = tf.cast(probabilities, tf.float32)
  true_class = tf.gather(probabilities, class_ids, axis=1, batch_dims=1)
  return -tf.math.log(tf.maximum(true_class, np.finfo(np.float32).tiny))


def brier_score(class_ids: np.ndarray, probabilities: np.ndarray) -> float:
  """Computes the mean squared distance of probabilities [n, M] to one-hot labels.

  It lies between 0 and 2.

  >>> f'{brier_score(np.array([0]), np.array([[0.8, 0.2]])):.2f}'  # 0.2^2 + 0.2^2
  '0.08'
  """
  is_true_class = np.arange(probabilities.shape[1]) == np.asarray(class_ids)[:, None]
  return float(np.square(probabilities - is_true_class).sum(axis=1).mean())


def failure_auroc(is_correct: np.ndarray, scores: np.ndarray) -> float | None:
  """Computes the area under the ROC curve for telling correct from wrong predictions.

  It is the probability that a correct prediction scores higher than a wrong one, with
  ties counting half.

  Args:
    is_correct: [n] booleans.
    scores: [n], higher for more certain predictions: a confidence or any other score.

  Returns:
    The area, or None if all predictions are correct or all are wrong.
  """
  if np.all(is_correct) or not np.any(is_correct):
    return None
  from sklearn import metrics as sklearn_metrics  # Slow to import.
  return float(sklearn_metrics.roc_auc_score(is_correct, scores))


def area_under_risk_coverage(is_correct: np.ndarray, scores: np.ndarray) -> float:
  """Computes the mean, over all coverages, of the error rate of the top scores.

  Predictions with equal scores share the mean of their errors, as in a random order.

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
  """Streaming expected calibration error (Eq. 11), independent of the batching."""

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
