"""DBLE as a Keras model: Algorithm 1 is `train_step`, inference is `answer`."""

import keras
import numpy as np
import tensorflow as tf

from dble_tf import calibration
from dble_tf import checks
from dble_tf import confidence
from dble_tf import prototypes
from dble_tf import replicas
from dble_tf.classifier import Classifier
from dble_tf.classifier import regularization
from dble_tf.classifier import Representations
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.confidence_model import phi_optimizer
from dble_tf.errors import UserError

_BATCH = 1000


@keras.saving.register_keras_serializable(package='dble_tf')
class DBLE(Classifier):
  """A classifier by distances to class centers that knows how sure it is.

  `fit` takes episodes [E, N, images a class, H, W, C]; `calibrate`, `evaluate` and
  `predict` take plain batches of images.

  ```python
  data = dble_tf.load('digits', validation_size=200)
  model = DBLE(encoders.mlp(data.image_shape), data.num_classes, num_shots=5)
  model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
  model.fit(data.episodes(num_shots=5, num_queries=10), steps_per_epoch=1000)
  model.calibrate(data.train.batches(500), data.validation.batches(500))
  model.predict(images)['confidence']
  ```

  Attributes:
    confidence_model: g_phi, or None for the prototypical classifier.
    centers: [M, D], the class centers over the training set (Eq. 5).
    center_counts: [M], the number of images that each center is the mean of.
    noise: [U, D], the standard normal vectors behind Eq. 10's samples. Every image
      shares them, so its confidence depends neither on its batch nor on the call.
    sigma_scale: alpha, the factor on sigma at inference; 1 until calibration.
    temperature: T, which distances are divided by at inference; 1 until calibration.
    calibration_size: the number of held-out images that both were fitted on; 0 where
      alpha is the center of its prior.
  """

  def __init__(
      self,
      encoder: keras.Model,
      num_classes: int,
      *,
      num_shots: int | None,
      confidence_model: ConfidenceModel | str | None = 'default',
      squared_scale: float | None = None,
      label_smoothing: float = 0.0,
      num_samples: int = 20,
      seed: int = 0,
      scaling: str = 'fitted',
      name: str | None = None,
      **kwargs,
  ):
    """Builds the model around an encoder.

    Args:
      encoder: f_theta, built: a model whose input shape is known.
      num_classes: M.
      num_shots: K, the number of each class's images in an episode that are supports,
        the rest being queries. None: every image is a query against the centers of all
        others (leave-one-out).
      confidence_model: g_phi; 'default' makes one. None: the prototypical classifier,
        whose confidence is the softmax over distances.
      squared_scale: theta learns from the softmax over squared distances times this
        factor, instead of distances. Labels, phi's loss and Eq. 10 are of distances.
      label_smoothing: the share of each of theta's targets that is spread over all
        classes of the episode. The softmax that theta learns with is underconfident
        then.
      num_samples: U, the number of points sampled per image (Eq. 10).
      seed: of the noise, in training and at inference.
      scaling: 'fitted': `calibrate` fits alpha and T on held-out images, where it is
        given any, and else takes the center of alpha's prior. 'none': neither, as the
        paper prints it.
      name: of the model.
      **kwargs: `keras.Model`'s, such as dtype.
    """
    super().__init__(encoder, num_classes, name=name, **kwargs)
    dim = self.representation_size
    if num_shots is not None and num_shots < 1:
      raise UserError(
          f'An episode needs at least one support a class, not {num_shots}; '
          'num_shots=None makes episodes leave-one-out.')
    if scaling not in calibration.SCALINGS:
      raise UserError(
          f'scaling is {" or ".join(map(repr, calibration.SCALINGS))}, not '
          f'{scaling!r}.')
    if squared_scale is not None and not squared_scale > 0:
      raise UserError(f'squared_scale must be above 0, not {squared_scale}.')
    if not 0.0 <= label_smoothing < 1.0:
      raise UserError(
          f'label_smoothing must be at least 0 and below 1, not {label_smoothing}.')
    if confidence_model == 'default':
      confidence_model = ConfidenceModel(dim)
    if confidence_model is not None and getattr(confidence_model, 'dim', None) != dim:
      raise UserError(
          f'confidence_model must be a ConfidenceModel({dim}), for representations of '
          f"{dim} numbers, 'default' or None.")
    self.num_shots = num_shots
    self.confidence_model = confidence_model
    self.squared_scale = squared_scale
    self.label_smoothing = label_smoothing
    self.num_samples = num_samples
    self.seed = seed
    self.scaling = scaling
    self.centers = self.add_state('centers', [num_classes, dim], 'zeros')
    self.center_counts = self.add_state('center_counts', [num_classes], 'zeros')
    self.temperature = self.add_state('temperature', [], 'ones')
    self.prototype_loss = keras.metrics.Mean('prototype_loss')
    self.error_rate = keras.metrics.Mean('error_rate')
    if confidence_model is not None:
      self.noise = self.add_state(
          'noise', [num_samples, dim],
          lambda shape, dtype: confidence.standard_noise(shape, [seed, 0]))
      self.sigma_scale = self.add_state('sigma_scale', [], 'ones')
      self.calibration_size = self.add_state('calibration_size', [], 'zeros')
      self.confidence_loss = keras.metrics.Mean('confidence_loss')

  # Training

  @replicas.training_step
  def train_step(self, data) -> dict[str, tf.Tensor]:
    """Algorithm 1: one update of theta and one of phi.

    Args:
      data: [E, N, images a class, H, W, C]: E episodes of N classes. An image's
        episode label is its place on the N axis.
    """
    episodes = tf.convert_to_tensor(keras.utils.unpack_x_y_sample_weight(data)[0])
    checks.require_episodes(episodes.shape, self.num_shots)
    labels = prototypes.episode_labels(*episodes.shape[1:3], self.num_shots)

    with tf.GradientTape() as tape:
      h = self._encode_episodes(episodes)  # Eq. 4
      queries = prototypes.episode_queries(h, self.num_shots)
      distances = prototypes.episode_distances(queries, h, self.num_shots)  # Eq. 2
      prototype_loss = -tf.reduce_mean(prototypes.target_log_likelihoods(
          prototypes.shaped(distances, self.squared_scale), labels,
          self.label_smoothing))  # Eq. 1 and 3
      loss = prototype_loss + regularization(self.encoder)
    replicas.minimize(self.optimizer, tape, loss, self.theta)

    is_error = prototypes.predicted_labels(distances) != labels  # Eq. 6
    if self.confidence_model is not None:
      self.confidence_model.update_scale(prototypes.at_true_class(distances, labels))
      noise = confidence.training_noise(
          tf.shape(queries), self.seed, self.confidence_optimizer)
      with tf.GradientTape() as tape:  # Behind the encoder: phi never moves theta.
        sigma = self.confidence_model(queries, training=True)  # Eq. 8
        z = confidence.sample_representations(queries, sigma, noise)
        z_distances = prototypes.episode_distances(z, h, self.num_shots)
        confidence_loss = self.confidence_model.loss(
            prototypes.true_log_likelihoods(z_distances, labels), is_error)  # Eq. 9
        phi_loss = confidence_loss + regularization(self.confidence_model)
      replicas.minimize(
          self.confidence_optimizer, tape, phi_loss, self.phi, skip_non_finite=True)
      loss += phi_loss
      self.confidence_loss.update_state(confidence_loss)

    self.loss_tracker.update_state(loss)
    self.prototype_loss.update_state(prototype_loss)
    self.error_rate.update_state(tf.cast(is_error, tf.float32))
    return replicas.metric_results(*self._training_metrics())

  def _encode_episodes(self, episodes):
    """[E, N, images a class, H, W, C] -> [E, N, images a class, D], in one call."""
    h = self.encode(tf.reshape(episodes, [-1, *episodes.shape[3:]]), training=True)
    return tf.reshape(h, [-1, *episodes.shape[1:3], h.shape[-1]])

  def _training_metrics(self):
    sigma_metrics = [] if self.confidence_model is None else [self.confidence_loss]
    return [self.loss_tracker, self.prototype_loss, *sigma_metrics, self.error_rate]

  @property
  def moving_statistics(self) -> list[keras.Variable]:
    return [*super().moving_statistics, *(
        [] if self.confidence_model is None else [self.confidence_model.scale])]

  @property
  def phi(self) -> list[keras.Variable]:
    """The variables that `confidence_optimizer` moves."""
    return ([] if self.confidence_model is None
            else self.confidence_model.trainable_variables)

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
      metrics: further Keras metrics for `evaluate`, each given the class ids [B] and
        the probabilities [B, M].
      run_eagerly: as in Keras.
      steps_per_execution: as in Keras.
      jit_compile: as in Keras.
    """
    super().compile(
        optimizer=optimizer, metrics=metrics, run_eagerly=run_eagerly,
        steps_per_execution=steps_per_execution, jit_compile=jit_compile)
    self.build_optimizer()
    if self.confidence_model is not None:
      self.confidence_optimizer = phi_optimizer(
          confidence_optimizer, self.optimizer, self.phi)

  def get_compile_config(self):
    config = super().get_compile_config()
    for unused in ('loss', 'loss_weights', 'weighted_metrics'):
      config.pop(unused, None)
    if config and self.confidence_model is not None:
      config['confidence_optimizer'] = keras.saving.serialize_keras_object(
          self.confidence_optimizer)
    return config

  def fit(self, x=None, y=None, *, train_data=None, validation_data=None, **kwargs):
    """Keras' `fit` on episodes; see `ValidatedModel.fit`."""
    if 'validation_split' in kwargs:
      raise UserError('Episodes cannot be split: pass validation_data instead.')
    if validation_data is not None and train_data is None:
      raise UserError(
          'Validation needs class centers: pass fit the training set as train_data, in '
          'batches of (images, class ids).')
    kwargs.setdefault('shuffle', False)  # Episodes are random as they come.
    return super().fit(
        x, y, train_data=train_data, validation_data=validation_data, **kwargs)

  # Calibration

  @property
  def takes_held_out(self) -> bool:
    return self.confidence_model is not None and self.scaling != 'none'

  def fit_train(self, train: tf.data.Dataset, verbose: int = 0) -> None:
    """Fits the class centers and sets alpha to its prior's, where not valid yet."""
    if not self.has_centers:
      self.fit_centers(train, verbose)
    if self.takes_held_out and not tf.convert_to_tensor(self.calibration_size) > 0:
      self.sigma_scale.assign(calibration.PRIOR.center)

  def fit_centers(self, train: tf.data.Dataset, verbose: int = 0) -> None:
    """Eq. 5: each class's mean representation, in one pass.

    Args:
      train: batches of (images, class ids), the training set without augmentation.
      verbose: 1 shows a progress bar.
    """
    checks.require_labelled_batches(train)
    sums = tf.zeros(self.centers.shape)
    counts = tf.zeros(self.center_counts.shape)
    for batch_sums, batch_counts in replicas.map_batches(
        _encode_class_sums, self, train, verbose):
      sums += batch_sums
      counts += batch_counts
    missing = np.flatnonzero(counts.numpy() == 0)
    if missing.size:
      raise UserError(
          f'No images of the classes {missing[:10].tolist()} to take centers of: pass '
          'the whole training set.')
    self.centers.assign(sums / counts[:, tf.newaxis])
    self.center_counts.assign(counts)

  def fit_held_out(self, held_out: Representations) -> None:
    """Fits alpha and T; see `calibration.fit`."""
    self.require_fitted()
    fitted = calibration.fit(self.held_out(held_out, self.confidence_model))
    if not np.isfinite(fitted.nll):
      raise UserError(
          'Confidences of the held-out images are not finite: training has diverged. '
          'Lower the learning rates.')
    self.sigma_scale.assign(fitted.sigma_scale)
    self.temperature.assign(fitted.temperature)
    self.calibration_size.assign(len(held_out.h))

  def held_out(self, representations: Representations, g) -> calibration.HeldOut:
    """All that Eq. 10 needs of images [n], with sigma = g(h)."""
    h, class_ids = representations
    sigma = np.concatenate([
        g(h[start:start + _BATCH]) for start in range(0, len(h), _BATCH)])
    return calibration.HeldOut(
        h, sigma.astype(np.float32), class_ids, tf.convert_to_tensor(self.centers),
        tf.convert_to_tensor(self.noise), self.squared_scale)

  def forget_calibration(self) -> None:
    self.center_counts.assign(tf.zeros_like(self.center_counts))
    self.temperature.assign(1.0)
    if self.confidence_model is not None:
      self.sigma_scale.assign(1.0)
      self.calibration_size.assign(0.0)

  @property
  def has_centers(self) -> bool:
    return bool(tf.reduce_all(tf.convert_to_tensor(self.center_counts) > 0))

  @property
  def uses_sigma(self) -> bool:
    """False without a confidence model, and where alpha is 0."""
    return self.confidence_model is not None and bool(
        tf.convert_to_tensor(self.sigma_scale) > 0)

  def require_fitted(self) -> None:
    if not self.has_centers:
      raise UserError(
          'This model has no class centers yet: call calibrate(train, held_out), or '
          'fit(..., train_data=train), with batches of (images, class ids).')

  @property
  def inference_variables(self) -> list[keras.Variable]:
    return [*self.theta, *(self.phi if self.uses_sigma else [])]

  # Inference

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """Labels representations [B, D].

    Returns:
      label: [B] int32, the nearest center (Eq. 6).
      confidence: [B], the averaged softmax at that label (Eq. 10); without a confidence
        model the softmax of Eq. 3.
      probabilities: [B, M], that softmax at every class.
      distance: [B], d'_t, to the predicted center.
      distances: [B, M], to every center.
      sigma: [B, D] (Eq. 8), times alpha; with a confidence model.
    """
    if self.confidence_model is None:
      return self._answer(h, uses_sigma=False)
    return self._answer(h, tf.convert_to_tensor(self.sigma_scale) > 0.0)

  def softmax_of(
      self, distances: tf.Tensor, temperature: tf.Tensor | float = 1.0) -> tf.Tensor:
    """Eq. 3 as theta learns with it: distances [B, M] -> probabilities [B, M]."""
    return tf.exp(prototypes.log_likelihoods(
        prototypes.shaped(distances, self.squared_scale) / temperature))

  def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
    """The answers of an export, whose graph has g_phi only where it is used."""
    with tf.init_scope():
      uses_sigma = self.uses_sigma
    return self.served(self._answer(self.encode(images), uses_sigma))

  def _answer(self, h, uses_sigma: tf.Tensor | bool):
    if tf.executing_eagerly():
      self.require_fitted()
    h = tf.cast(h, tf.float32)
    distances = prototypes.distances(h, tf.convert_to_tensor(self.centers))
    label = prototypes.predicted_labels(distances)

    def sampled():
      sigma = tf.convert_to_tensor(self.sigma_scale) * self.confidence_model(
          h, training=False)
      return confidence.averaged_probabilities(
          h, sigma, tf.convert_to_tensor(self.centers),
          tf.convert_to_tensor(self.noise),
          tf.convert_to_tensor(self.temperature)), sigma

    def without_sigma():
      return self.softmax_of(
          distances, tf.convert_to_tensor(self.temperature)), tf.zeros_like(h)

    if isinstance(uses_sigma, bool):
      probabilities, sigma = sampled() if uses_sigma else without_sigma()
    else:
      probabilities, sigma = tf.cond(uses_sigma, sampled, without_sigma)
    return {
        'label': label,
        'confidence': tf.gather(probabilities, label, axis=1, batch_dims=1),
        'probabilities': probabilities,
        'distance': tf.reduce_min(distances, axis=-1),
        'distances': distances,
        **({} if self.confidence_model is None else {'sigma': sigma}),
    }

  def served(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Adds distance [B] and, with a confidence model, mean sigma [B]."""
    served = {**super().served(outputs), 'distance': outputs['distance']}
    if 'sigma' in outputs:
      served['sigma'] = tf.reduce_mean(outputs['sigma'], axis=-1)
    return served

  # Serialization

  def get_config(self):
    return {
        **super().get_config(),
        'num_shots': self.num_shots,
        'confidence_model': (
            None if self.confidence_model is None
            else keras.saving.serialize_keras_object(self.confidence_model)),
        'squared_scale': self.squared_scale,
        'label_smoothing': self.label_smoothing,
        'num_samples': self.num_samples,
        'seed': self.seed,
        'scaling': self.scaling,
    }


def _encode_class_sums(model, images, class_ids):
  return prototypes.class_sums(model.encode(images), class_ids, model.num_classes)
