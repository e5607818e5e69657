"""TrustScore (Jiang et al., 2018): plain training, judged by its neighbors.

The score of an image is its distance to the nearest training image of any class but
the predicted one, over that to the nearest of the predicted class, both between
representations. Platt scaling of its logarithm, fitted on held-out data, turns it into
the confidence of the label; the other classes share the rest in the softmax's
proportions.
"""

import keras
import numpy as np
import tensorflow as tf

from dble_tf import prototypes
from dble_tf.baselines.vanilla import softmax_answers
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import Representations
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class TrustScore(Vanilla):
  """Plain training whose confidence comes from distances to training images.

  Until calibration it answers as `Vanilla`.

  Attributes:
    points: [n, D], representations of the training images.
    point_classes: [n], their classes; -1 where an image is left out.
    platt: [2], slope and offset from the log-score to the confidence's logit.
    calibration_size: the number of held-out images that these were fitted on.
  """

  needs_held_out = True

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      num_points: int,
      sparse_share: float = 0.05,
      num_neighbors: int = 10,
      weight_decay: float = 5e-4,
      name: str | None = None,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      num_points: n, the number of training images.
      sparse_share: alpha, the share of each class's images, those of lowest density,
        that is left out.
      num_neighbors: k: density is judged by the distance to the k-th neighbor.
      weight_decay: factor of the linear layer's kernel in its own gradient.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    super().__init__(
        encoder, num_classes, weight_decay=weight_decay, name=name, **kwargs)
    self.num_points = num_points
    self.sparse_share = sparse_share
    self.num_neighbors = num_neighbors
    self.points = self.add_state(
        'points', [num_points, self.representation_size], 'zeros')
    self.point_classes = self.add_state(
        'point_classes', [num_points], keras.initializers.Constant(-1))
    self.platt = self.add_state('platt', [2], 'zeros')
    self.calibration_size = self.add_state('calibration_size', [], 'zeros')

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Labels representations [B, D].

    Returns:
      label: [B] int32, the largest logit.
      confidence: [B], from the score by Platt scaling.
      probabilities: [B, M].
      logits: [B, M].
      score: [B], the ratio of distances.
    """
    answers = softmax_answers(self.logits(h))
    return tf.cond(
        self.is_calibrated, lambda: self._judged(h, answers),
        lambda: {**answers, 'score': answers['confidence']})

  def _judged(self, h, answers):
    score = trust_scores(
        h, answers['label'], tf.convert_to_tensor(self.points),
        tf.cast(self.point_classes, tf.int32), self.num_classes)
    slope, offset = tf.unstack(tf.convert_to_tensor(self.platt))
    confidence_logit = slope * tf.math.log(score) + offset
    confidence = tf.sigmoid(confidence_logit)
    is_label = tf.one_hot(answers['label'], self.num_classes)
    others = tf.nn.softmax(answers['logits'] - 1e9 * is_label)
    return {
        **answers,
        'confidence': confidence,
        'probabilities': tf.where(
            is_label > 0, confidence[:, tf.newaxis],
            tf.sigmoid(-confidence_logit)[:, tf.newaxis] * others),
        'score': score,
    }

  def fit_train(self, train: tf.data.Dataset, verbose: int = 0) -> None:
    """Takes the points from the training set, unless they are valid."""
    if self.has_points:
      return
    points, classes = self.represent(train, verbose)
    if len(points) != self.num_points:
      raise UserError(
          f'TrustScore was built for {self.num_points} training images, not for '
          f'{len(points)}: build it with num_points={len(points)}.')
    is_kept = is_dense(points, classes, self.sparse_share, self.num_neighbors)
    self.points.assign(points)
    self.point_classes.assign(np.where(is_kept, classes, -1))

  def fit_held_out(self, held_out: Representations) -> None:
    """Fits Platt scaling."""
    self.calibration_size.assign(len(held_out.h))  # From here answers have scores.
    try:
      answers = self.predict_from(held_out.h)
      self.platt.assign(platt_scaling(
          np.log(answers['score']), answers['label'] == held_out.class_ids))
    except BaseException:
      self.forget_calibration()
      raise

  @property
  def has_points(self) -> tf.Tensor:
    return tf.reduce_any(tf.convert_to_tensor(self.point_classes) >= 0.0)

  @property
  def is_calibrated(self) -> tf.Tensor:
    return tf.convert_to_tensor(self.calibration_size) > 0.0

  def forget_calibration(self) -> None:
    self.point_classes.assign(-tf.ones_like(self.point_classes))
    self.calibration_size.assign(0.0)

  def require_calibrated(self) -> None:
    if not self.is_calibrated:
      raise UserError(
          'This TrustScore is not calibrated yet: call calibrate(train, held_out) with '
          'batches of (images, class ids).')

  def take_trained(self, other: Vanilla) -> None:
    """Copies the trained weights of a model with the same encoder."""
    super().take_trained(other)
    self.forget_calibration()

  def get_config(self):
    return {
        **super().get_config(),
        'num_points': self.num_points,
        'sparse_share': self.sparse_share,
        'num_neighbors': self.num_neighbors,
    }


def is_dense(
    points: np.ndarray, class_ids: np.ndarray, sparse_share: float, num_neighbors: int
) -> np.ndarray:
  """The alpha-high-density set: each class without its images of lowest density.

  Args:
    points: [n, D].
    class_ids: [n].
    sparse_share: alpha, the share of each class that is left out.
    num_neighbors: k; the larger the distance to the k-th neighbor in the class, the
      lower the density. A class of k images or fewer is kept whole.

  Returns:
    [n] booleans.
  """
  from sklearn import neighbors

  is_kept = np.ones(len(points), bool)
  for class_id in np.unique(class_ids):
    indices = np.flatnonzero(class_ids == class_id)
    if sparse_share > 0 and len(indices) > num_neighbors:
      tree = neighbors.NearestNeighbors(n_neighbors=num_neighbors).fit(
          points[indices])
      radii = tree.kneighbors()[0][:, -1]
      is_kept[indices] = radii <= np.quantile(radii, 1.0 - sparse_share)
  return is_kept


def trust_scores(
    h: tf.Tensor, labels: tf.Tensor, points: tf.Tensor, point_classes: tf.Tensor,
    num_classes: int,
) -> tf.Tensor:
  """Distance to the nearest point of another class, over that of the label's class.

  Args:
    h: [B, D].
    labels: [B].
    points: [n, D].
    point_classes: [n]; a point of class -1 does not count.
    num_classes: M.

  Returns:
    [B].
  """
  squared = prototypes.squared_distances(points, h)  # [n, B]
  nearest = prototypes.root(tf.math.unsorted_segment_min(
      squared, point_classes, num_classes))  # [M, B]
  is_label = tf.transpose(tf.one_hot(labels, num_classes)) > 0
  to_label = tf.reduce_min(tf.where(is_label, nearest, np.inf), axis=0)
  to_others = tf.reduce_min(tf.where(is_label, np.inf, nearest), axis=0)
  return to_others / to_label


def platt_scaling(scores: np.ndarray, is_correct: np.ndarray) -> tuple[float, float]:
  """Slope and offset of the logistic curve from score to P(correct), both [n].

  Targets are Platt's, (n_correct + 1) / (n_correct + 2) and 1 / (n_wrong + 2), which
  are well defined without any error.
  """
  from sklearn import linear_model

  num_correct, num_wrong = is_correct.sum(), (~is_correct).sum()
  targets = np.where(
      is_correct, (num_correct + 1) / (num_correct + 2), 1 / (num_wrong + 2))
  # A target between 0 and 1 is an example of both outcomes, weighted.
  curve = linear_model.LogisticRegression(C=np.inf).fit(
      np.concatenate([scores, scores])[:, np.newaxis],
      np.repeat([1, 0], len(scores)),
      sample_weight=np.concatenate([targets, 1.0 - targets]))
  return float(curve.coef_[0, 0]), float(curve.intercept_[0])
