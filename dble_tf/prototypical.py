"""Prototypical learning (Section 3.1) as a Keras model: DBLE's encoder by itself."""

import keras
import numpy as np
import tensorflow as tf

from dble_tf import classifier
from dble_tf import prototypes
from dble_tf import replicas
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class Prototypical(classifier.Classifier):
  """A classifier by distances to class centers; its confidence is their softmax.

  `fit` takes episodes [E, N, images a class, H, W, C] (`episodes.episode_dataset`);
  `fit_centers`, `evaluate` and `predict` take plain batches of images.

  Attributes:
    encoder: f_theta, images -> representations [B, D].
    centers: [M, D], the class centers over the training set (Eq. 5).
    center_counts: [M], how many images each center is the mean of.
  """

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      num_shots: int | None,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      num_shots: K, how many of each class's images in an episode are supports, the
        rest being queries. None: every image is a query against the centers of all
        others (leave-one-out), so nothing is encoded for its own class's center only.
      **kwargs: as for any `keras.Model`.
    """
    super().__init__(encoder, num_classes, **kwargs)
    self.num_shots = num_shots
    if num_shots is not None and num_shots < 1:
      raise UserError(
          f'A class needs a support or more in an episode, not {num_shots}; '
          'num_shots=None makes episodes leave-one-out.')
    self.centers = self.add_state(
        'centers', [num_classes, self.representation_size], 'zeros')
    self.center_counts = self.add_state('center_counts', [num_classes], 'zeros')
    self.prototype_loss = keras.metrics.Mean('prototype_loss')
    self.error_rate = keras.metrics.Mean('error_rate')
    self._refit_centers = None  # What `fit` does before each validation.

  # Inference

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images and says how sure it is.

    Args:
      images: [B, H, W, C], as the encoder takes them.
      training: passed on to the encoder.

    Returns:
      label: [B] int32, the nearest center (Eq. 6).
      confidence: [B], the softmax of Eq. 3 at that label.
      probabilities: [B, M], the softmax.
      distance: [B], d'_t, to the predicted center.
      distances: [B, M], to every center.
    """
    return self.answers(self.encode(images, training), self.fitted_centers())

  def answers(self, h: tf.Tensor, centers: tf.Tensor) -> dict[str, tf.Tensor]:
    """What `call` returns, from representations [B, D] and centers [M, D]."""
    distances = prototypes.distances(h, centers)
    probabilities = tf.exp(prototypes.log_likelihoods(distances))
    return {
        'label': prototypes.predicted_labels(distances),
        'confidence': tf.reduce_max(probabilities, axis=-1),
        'probabilities': probabilities,
        'distance': tf.reduce_min(distances, axis=-1),
        'distances': distances,
    }

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What an export answers: also distance [B]."""
    return {**super().served(outputs), 'distance': outputs['distance']}

  # Class centers

  def fit_centers(self, dataset: tf.data.Dataset, verbose: int = 0) -> None:
    """Eq. 5: each class's mean representation, in one pass over `dataset`.

    Args:
      dataset: batches of (images, class ids), the training set without
        augmentation.
      verbose: 1 shows a progress bar.
    """
    classifier.require_labelled_batches(dataset)
    sums = tf.zeros(self.centers.shape)
    counts = tf.zeros(self.center_counts.shape)
    for batch_sums, batch_counts in classifier.on_labelled_batches(
        _encode_class_sums, self, dataset, verbose):
      sums += batch_sums
      counts += batch_counts
    missing = [i for i, count in enumerate(counts.numpy()) if count == 0]
    if missing:
      raise UserError(
          f'No center for the classes {missing[:10]}: the data given to '
          'fit_centers has no image of them. Give it the whole training set.')
    self.centers.assign(sums / counts[:, tf.newaxis])
    self.center_counts.assign(counts)

  def complete(self, train, held_out=None, verbose=0) -> None:
    """Fits the class centers on `train`, unless the model has valid ones already."""
    if not self.has_centers:
      self.fit_centers(train, verbose)

  @property
  def has_centers(self) -> bool:
    return bool(tf.reduce_all(tf.convert_to_tensor(self.center_counts) > 0))

  def require_fitted(self) -> None:
    """Raises a `UserError` unless the class centers have been fitted."""
    if not self.has_centers:
      raise UserError(
          'This model has no class centers yet: call fit_centers(train), or '
          'fit(..., centers_data=train), with batches of the training set.')

  def fitted_centers(self):
    if tf.executing_eagerly():
      self.require_fitted()
    return tf.convert_to_tensor(self.centers)

  # Training

  def compile(
      self,
      optimizer='sgd',
      metrics=None,
      run_eagerly=False,
      steps_per_execution=1,
      jit_compile='auto',
  ):
    """Sets theta's optimizer, and how steps run.

    Args:
      optimizer: of theta, the encoder.
      metrics: further Keras metrics for `evaluate`, each given the class ids [B]
        and the probabilities [B, M].
      run_eagerly: as in Keras.
      steps_per_execution: as in Keras.
      jit_compile: as in Keras.
    """
    super().compile(
        optimizer=optimizer, metrics=metrics, run_eagerly=run_eagerly,
        steps_per_execution=steps_per_execution, jit_compile=jit_compile)
    self.optimizer.build(self.theta)

  def get_compile_config(self):
    config = super().get_compile_config()
    for name in ('loss', 'loss_weights', 'weighted_metrics'):
      config.pop(name, None)
    return config

  def fit(
      self, x=None, *, centers_data=None, validation_data=None, verbose='auto',
      **kwargs):
    """Keras' `fit` on episodes, with class centers fitted for each validation.

    Args:
      x: batches of episodes [E, N, images a class, H, W, C].
      centers_data: batches of (images, class ids), the training set; from it the
        centers are fitted before each validation and at the end.
      validation_data: batches of (images, class ids).
      verbose: as in Keras.
      **kwargs: as in Keras.

    Returns:
      Keras' `History`.
    """
    if 'validation_split' in kwargs:
      raise UserError('Episodes cannot be split: give validation_data instead.')
    if validation_data is not None and centers_data is None:
      raise UserError(
          'Validation needs class centers: give fit the training set as '
          'centers_data=, in batches of (images, class ids).')
    kwargs.setdefault('shuffle', False)  # Episodes are random as they come.
    if centers_data is not None:
      classifier.require_labelled_batches(centers_data)
      self._refit_centers = self._center_refitting(
          centers_data, verbose=int(verbose in ('auto', 1)))
    try:
      history = super().fit(
          x, validation_data=validation_data, verbose=verbose, **kwargs)
      if centers_data is not None:
        self._refit_centers()
    finally:
      self._refit_centers = None
    return history

  def _center_refitting(self, centers_data, verbose):
    """A function that fits the centers, where the encoder has moved since."""
    fitted_with = None

    def refit():
      nonlocal fitted_with
      weights = self.encoder.get_weights()
      if fitted_with is None or not all(map(np.array_equal, weights, fitted_with)):
        self.fit_centers(centers_data, verbose)
        fitted_with = weights

    return refit

  def evaluate(self, *args, **kwargs):
    """Keras' `evaluate`: accuracy, ECE and NLL on batches of (images, class ids)."""
    if self._refit_centers is not None:
      self._refit_centers()
    return super().evaluate(*args, **kwargs)

  def make_train_function(self, force=False):
    # Training moves theta: centers of before are no centers any more.
    self.center_counts.assign(tf.zeros_like(self.center_counts))
    return super().make_train_function(force)

  def make_test_function(self, force=False):
    self.require_fitted()
    return super().make_test_function(force)

  def make_predict_function(self, force=False):
    self.require_fitted()
    return super().make_predict_function(force)

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta on episodes.

    Args:
      data: [E, N, images a class, H, W, C]: E episodes of N classes. An image's
        episode label is its place on the N axis.
    """
    loss, _, _ = self.update_theta(*self.episodes_and_labels(data))
    self._loss_tracker.update_state(loss)
    return classifier.metric_results(
        self._loss_tracker, self.prototype_loss, self.error_rate)

  def episodes_and_labels(self, data) -> tuple[tf.Tensor, tf.Tensor]:
    """What `fit` passes to `train_step`, checked, and its queries' labels [Q]."""
    episodes = tf.convert_to_tensor(
        keras.utils.unpack_x_y_sample_weight(data)[0])
    self._check_episodes(episodes)
    _, num_ways, num_images = episodes.shape[:3]
    return episodes, prototypes.episode_labels(num_ways, num_images, self.num_shots)

  def update_theta(
      self, episodes: tf.Tensor, labels: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The first half of Algorithm 1: the prototypical loss (Eq. 1 to 3) on theta.

    Args:
      episodes: [E, N, images a class, H, W, C].
      labels: [Q], of the queries.

    Returns:
      The loss, h [E, N, images a class, D] and the queries' distances [E, Q, N], all
      of before the update.
    """
    with tf.GradientTape() as tape:
      h = self.encode(
          tf.reshape(episodes, [-1, *episodes.shape[3:]]), training=True)
      h = tf.reshape(h, [-1, *episodes.shape[1:3], h.shape[-1]])
      distances = prototypes.episode_distances(
          prototypes.episode_queries(h, self.num_shots), h, self.num_shots)
      prototype_loss = -tf.reduce_mean(
          prototypes.true_log_likelihoods(distances, labels))
      loss = prototype_loss + classifier.regularization(self.encoder)
      scaled_loss = self.optimizer.scale_loss(replicas.share(loss))
    self.move_theta(tape, scaled_loss)
    self.prototype_loss.update_state(prototype_loss)
    self.error_rate.update_state(
        tf.cast(prototypes.predicted_labels(distances) != labels, tf.float32))
    return loss, h, distances

  def _check_episodes(self, episodes):
    shape = episodes.shape
    if shape.rank is None or shape.rank < 4 or None in shape.as_list()[1:]:
      raise UserError(
          f'fit takes episodes [E, N, images a class, ...] of fixed size, not {shape}: '
          'make them with dble_tf.episodes.episode_dataset.')
    if shape[2] < 2:
      raise UserError(
          'An episode holds a single image a class, which cannot be a support and a '
          'query at once: take two or more.')
    if shape[2] <= (self.num_shots or 0):
      raise UserError(
          f'An episode holds {shape[2]} images a class, of which {self.num_shots} '
          'are supports: no query is left. Raise num_queries.')

  # Serialisation

  def get_config(self):
    return {**super().get_config(), 'num_shots': self.num_shots}


def _encode_class_sums(model, images, class_ids):
  return prototypes.class_sums(model.encode(images), class_ids, model.num_classes)
