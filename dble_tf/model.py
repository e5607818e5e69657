"""DBLE as a Keras model: Algorithm 1 is `train_step`, inference is `call`."""

import keras
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf import prototypes
from dble_tf.learning_from_errors import LearningFromErrors
from dble_tf.prototypical import Prototypical


@keras.saving.register_keras_serializable(package='dble_tf')
class DBLE(LearningFromErrors, Prototypical):
  """A classifier by distances to class centers that knows how sure it is.

  `Prototypical` trains theta and has the class centers; `LearningFromErrors` trains
  phi. `fit` takes episodes [E, N, images a class, H, W, C]
  (`episodes.episode_dataset`); `fit_centers`, `evaluate` and `predict` take plain
  batches of images.

  ```python
  encoder = encoders.mlp([28, 28, 1])
  model = DBLE(encoder, confidence.confidence_mlp(512), num_classes=10, num_shots=10)
  model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
  model.fit(episodes, steps_per_epoch=1000, centers_data=train, validation_data=validation)
  model.predict(images)['confidence']
  ```
  """

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images and says how sure it is.

    Args:
      images: [B, H, W, C], as the encoder takes them.
      training: passed on to the encoder.

    Returns:
      label: [B] int32, the nearest center (Eq. 6).
      confidence: [B], the averaged softmax at that label (Eq. 10).
      probabilities: [B, M], the averaged softmax.
      sigma: [B, D] (Eq. 8).
      distance: [B], d'_t, to the predicted center.
      distances: [B, M], to every center.
    """
    centers = self.fitted_centers()
    h = self.encode(images, training)
    sigma = self.confidence_model(h, training=False)
    probabilities = confidence.averaged_probabilities(
        h, sigma, centers, tf.convert_to_tensor(self.noise))
    return self.with_sigma(self.answers(h, centers), probabilities, sigma)

  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta and phi (Algorithm 1) on episodes.

    Args:
      data: [E, N, images a class, H, W, C]: E episodes of N classes. An image's
        episode label is its place on the N axis.
    """
    episodes, labels = self.episodes_and_labels(data)
    theta_loss, h, distances = self.update_theta(episodes, labels)
    phi_loss = self.update_phi(h, distances, labels)
    self._loss_tracker.update_state(theta_loss + phi_loss)
    return classifier.metric_results(
        self._loss_tracker, self.prototype_loss, self.confidence_loss, self.error_rate)

  def update_phi(
      self, h: tf.Tensor, distances: tf.Tensor, labels: tf.Tensor
  ) -> tf.Tensor:
    """The second half of Algorithm 1, on the queries that theta got wrong.

    Args:
      h: [E, N, images a class, D].
      distances: [E, Q, N], of the queries.
      labels: [Q].

    Returns:
      The loss of before the update.
    """
    return self.learn_confidence(
        prototypes.episode_queries(h, self.num_shots),
        prototypes.predicted_labels(distances) != labels,
        lambda z: prototypes.true_log_likelihoods(
            prototypes.episode_distances(z, h, self.num_shots), labels))
