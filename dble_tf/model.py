"""DBLE as a Keras model: Algorithm 1 is `train_step`, inference is `call`."""

import keras
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf import prototypes
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class DBLE(classifier.Classifier):
  """A classifier by distances to class centers that knows how sure it is.

  `fit` takes episodes [E, N, images a class, H, W, C] (`episodes.episode_dataset`);
  `fit_centers`, `evaluate` and `predict` take plain batches of images.

  ```python
  encoder = encoders.mlp([28, 28, 1])
  model = DBLE(encoder, confidence.confidence_mlp(512), num_classes=10, num_shots=10)
  model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
  model.fit(episodes, steps_per_epoch=1000, centers_data=train, validation_data=validation)
  model.predict(images)['confidence']
  ```

  Attributes:
    encoder: f_theta, images -> representations [B, D].
    confidence_model: g_phi, representations [B, D] -> sigma [B, D] > 0.
    centers: [M, D], the class centers over the training set (Eq. 5).
    center_counts: [M], how many images each center is the mean of.
    noise: [U, D], the standard normal vectors behind Eq. 10's samples. Every image
      shares them, so its confidence depends neither on its batch nor on the call.
  """

  def __init__(
      self,
      encoder: keras.Model,
      confidence_model: keras.Model,
      num_classes: int,
      *,
      num_shots: int | None,
      num_samples: int = 20,
      seed: int = 0,
      **kwargs,
  ):
    """Builds the model around an encoder and a confidence model.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      confidence_model: g_phi, built likewise.
      num_classes: M.
      num_shots: K, how many of each class's images in an episode are supports, the
        rest being queries. None: every image is a query against the centers of all
        others (leave-one-out), so nothing is encoded for its own class's center only.
      num_samples: U, how many representations are sampled per image (Eq. 10).
      seed: of the noise, in training and at inference.
      **kwargs: as for any `keras.Model`.
    """
    super().__init__(encoder, num_classes, **kwargs)
    self.confidence_model = confidence_model
    self.num_shots = num_shots
    self.num_samples = num_samples
    self.seed = seed
    if num_shots is not None and num_shots < 1:
      raise UserError(
          f'A class needs a support or more in an episode, not {num_shots}; '
          'num_shots=None makes episodes leave-one-out.')
    dim = self.representation_size
    sigma_dim = classifier.vector_size('confidence model', confidence_model)
    if sigma_dim != dim or confidence_model.inputs[0].shape[-1] != dim:
      raise UserError(
          f'The confidence model must take and give the {dim} numbers of a '
          f'representation: build it with confidence_mlp({dim}).')
    self.centers = self._state('centers', [num_classes, dim], 'zeros')
    self.center_counts = self._state('center_counts', [num_classes], 'zeros')
    self.noise = self._state(
        'noise', [num_samples, dim],
        lambda shape, dtype: confidence.standard_noise(shape, [seed, 0]))
    self.prototype_loss = keras.metrics.Mean('prototype_loss')
    self.confidence_loss = keras.metrics.Mean('confidence_loss')
    self.error_rate = keras.metrics.Mean('error_rate')
    self._refit_centers = None  # What `fit` does before each validation.

  def _state(self, name, shape, initializer):
    return self.add_weight(
        name=name, shape=shape, initializer=initializer, trainable=False,
        dtype='float32', autocast=False)

  # Inference

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
    if tf.executing_eagerly():
      self.require_fitted()
    h = self.encode(images, training)
    sigma = self.confidence_model(h, training=False)
    centers = tf.convert_to_tensor(self.centers)
    distances = prototypes.distances(h, centers)
    label = prototypes.predicted_labels(distances)
    probabilities = confidence.averaged_probabilities(
        h, sigma, centers, tf.convert_to_tensor(self.noise))
    return {
        'label': label,
        'confidence': tf.gather(probabilities, label, axis=1, batch_dims=1),
        'probabilities': probabilities,
        'sigma': sigma,
        'distance': tf.reduce_min(distances, axis=-1),
        'distances': distances,
    }

  def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """What an export answers: also distance [B] and mean sigma [B]."""
    outputs = self(images)
    return {
        **{name: outputs[name] for name in (
            'label', 'confidence', 'probabilities', 'distance')},
        'sigma': tf.reduce_mean(outputs['sigma'], axis=-1),
    }

  # Class centers

  def fit_centers(self, dataset: tf.data.Dataset, verbose: int = 0) -> None:
    """Eq. 5: each class's mean representation, in one pass over `dataset`.

    Args:
      dataset: batches of (images, class ids), the training set without
        augmentation.
      verbose: 1 shows a progress bar.
    """
    _check_centers_data(dataset)
    sums = tf.zeros(self.centers.shape)
    counts = tf.zeros(self.center_counts.shape)
    size = int(dataset.cardinality())
    progress = keras.utils.Progbar(size if size > 0 else None, verbose=verbose)
    for images, class_ids, *_ in dataset:
      batch_sums, batch_counts = _encode_class_sums(
          self, images, tf.reshape(class_ids, [-1]))
      sums += batch_sums
      counts += batch_counts
      progress.add(1)
    missing = [i for i, count in enumerate(counts.numpy()) if count == 0]
    if missing:
      raise UserError(
          f'No center for the classes {missing[:10]}: the data given to '
          'fit_centers has no image of them. Give it the whole training set.')
    self.centers.assign(sums / counts[:, tf.newaxis])
    self.center_counts.assign(counts)

  @property
  def has_centers(self) -> bool:
    return bool(tf.reduce_all(tf.convert_to_tensor(self.center_counts) > 0))

  def require_fitted(self) -> None:
    """Raises a `UserError` unless the class centers have been fitted."""
    if not self.has_centers:
      raise UserError(
          'This model has no class centers yet: call fit_centers(train), or '
          'fit(..., centers_data=train), with batches of the training set.')

  # Training

  def compile(
      self,
      optimizer='sgd',
      confidence_optimizer='sgd',
      metrics=None,
      run_eagerly=False,
      steps_per_execution=1,
      jit_compile='auto',
  ):
    """Sets the optimizers of theta and phi, and how steps run.

    Args:
      optimizer: of theta, the encoder.
      confidence_optimizer: of phi, the confidence model.
      metrics: further Keras metrics for `evaluate`, each given the class ids [B]
        and the probabilities [B, M].
      run_eagerly: as in Keras.
      steps_per_execution: as in Keras.
      jit_compile: as in Keras.
    """
    super().compile(
        optimizer=optimizer, metrics=metrics, run_eagerly=run_eagerly,
        steps_per_execution=steps_per_execution, jit_compile=jit_compile)
    self.confidence_optimizer = keras.optimizers.get(confidence_optimizer)
    if self.confidence_optimizer is self.optimizer:
      raise UserError('Theta and phi need an optimizer each; this is one for both.')
    loss_scaling = keras.optimizers.LossScaleOptimizer
    if (isinstance(self.optimizer, loss_scaling)
        and not isinstance(self.confidence_optimizer, loss_scaling)):
      # Keras scales losses under mixed_float16; for phi as for theta.
      self.confidence_optimizer = loss_scaling(self.confidence_optimizer)
    # Each optimizer on its own variables, before Keras gives all of them to one.
    self.optimizer.build(self.encoder.trainable_variables)
    self.confidence_optimizer.build(self.confidence_model.trainable_variables)

  def get_compile_config(self):
    config = super().get_compile_config()
    if config:
      for name in ('loss', 'loss_weights', 'weighted_metrics'):
        del config[name]
      config['confidence_optimizer'] = keras.saving.serialize_keras_object(
          self.confidence_optimizer)
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
      _check_centers_data(centers_data)
      self._refit_centers = lambda: self.fit_centers(
          centers_data, verbose=int(verbose in ('auto', 1)))
    try:
      history = super().fit(
          x, validation_data=validation_data, verbose=verbose, **kwargs)
      if centers_data is not None:
        self._refit_centers()
    finally:
      self._refit_centers = None
    return history

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

  def export(self, filepath, *args, **kwargs):
    """Keras' `export`, refused without class centers."""
    self.require_fitted()
    return super().export(filepath, *args, **kwargs)

  def train_step(self, data) -> dict[str, tf.Tensor]:
    """One update of theta and phi (Algorithm 1) on episodes.

    Args:
      data: [E, N, images a class, H, W, C]: E episodes of N classes. An image's
        episode label is its place on the N axis.
    """
    episodes = tf.convert_to_tensor(
        keras.utils.unpack_x_y_sample_weight(data)[0])
    self._check_episodes(episodes)
    _, num_ways, num_images = episodes.shape[:3]
    labels = prototypes.episode_labels(num_ways, num_images, self.num_shots)
    theta_loss, h, distances = self.update_theta(episodes, labels)
    phi_loss = self.update_phi(h, distances, labels)
    self._loss_tracker.update_state(theta_loss + phi_loss)
    return classifier.metric_results(
        self._loss_tracker, self.prototype_loss, self.confidence_loss, self.error_rate)

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
      loss = prototype_loss + _regularization(self.encoder)
      scaled_loss = self.optimizer.scale_loss(loss)
    theta = self.encoder.trainable_variables
    self.optimizer.apply(tape.gradient(scaled_loss, theta), theta)
    self.prototype_loss.update_state(prototype_loss)
    return loss, h, distances

  def update_phi(
      self, h: tf.Tensor, distances: tf.Tensor, labels: tf.Tensor
  ) -> tf.Tensor:
    """The second half: the confidence loss (Eq. 8 and 9) on phi.

    Phi learns from the queries that theta got wrong, and never moves theta: its tape
    begins behind the encoder.

    Args:
      h: [E, N, images a class, D].
      distances: [E, Q, N], of the queries.
      labels: [Q].

    Returns:
      The loss of before the update.
    """
    is_error = prototypes.predicted_labels(distances) != labels  # [E, Q]
    queries = prototypes.episode_queries(h, self.num_shots)  # [E, Q, D]
    with tf.GradientTape() as tape:
      z = confidence.sample_representations(
          queries, self._sigma(queries), self._training_noise(tf.shape(queries)))
      log_likelihoods = prototypes.true_log_likelihoods(
          prototypes.episode_distances(z, h, self.num_shots), labels)
      confidence_loss = confidence.error_loss(log_likelihoods, is_error)
      loss = confidence_loss + _regularization(self.confidence_model)
      scaled_loss = self.confidence_optimizer.scale_loss(loss)
    phi = self.confidence_model.trainable_variables
    self.confidence_optimizer.apply(tape.gradient(scaled_loss, phi), phi)
    self.confidence_loss.update_state(confidence_loss)
    self.error_rate.update_state(tf.cast(is_error, tf.float32))
    return loss

  def _sigma(self, queries):
    """Eq. 8 in training mode, [E, Q, D] -> [E, Q, D]."""
    rows = tf.reshape(queries, [-1, queries.shape[-1]])
    sigma = self.confidence_model(rows, training=True)
    return tf.reshape(sigma, tf.shape(queries))

  def _training_noise(self, shape):
    """Noise of its own for each step, the same when a run is repeated."""
    # Inference has the seed (seed, 0), so the first step has (seed, 1).
    step = tf.cast(self.confidence_optimizer.iterations.value, tf.int32) + 1
    return confidence.standard_noise(shape, tf.stack([self.seed, step]))

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
    return {
        **super().get_config(),
        'confidence_model': keras.saving.serialize_keras_object(
            self.confidence_model),
        'num_shots': self.num_shots,
        'num_samples': self.num_samples,
        'seed': self.seed,
    }


@tf.function(reduce_retracing=True)
def _encode_class_sums(model, images, class_ids):
  # Outside the class: a function that is an attribute would be exported with it.
  return prototypes.class_sums(model.encode(images), class_ids, model.num_classes)


def _check_centers_data(dataset):
  if not (isinstance(dataset, tf.data.Dataset)
          and isinstance(dataset.element_spec, tuple)
          and len(dataset.element_spec) >= 2
          and dataset.cardinality() != tf.data.INFINITE_CARDINALITY):
    raise UserError(
        'Class centers are fitted on a finite tf.data.Dataset of batches of '
        '(images, class ids), such as Split.batches gives.')


def _regularization(model):
  return tf.add_n(model.losses) if model.losses else 0.0
