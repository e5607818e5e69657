"""DBLE as a Keras model: Algorithm 1 is `train_step`, inference is `call`."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from dble_tf import classifier
from dble_tf import confidence
from dble_tf import held_out_errors
from dble_tf import prototypes
from dble_tf import replicas
from dble_tf import calibration
from dble_tf.errors import UserError
from dble_tf.learning_from_errors import LearningFromErrors
from dble_tf.prototypical import Prototypical

_BATCH = 1000


@keras.saving.register_keras_serializable(package='dble_tf')
class DBLE(LearningFromErrors, Prototypical):
  """A classifier by distances to class centers that knows how sure it is.

  `Prototypical` trains theta and has the class centers; `LearningFromErrors` trains
  phi. `fit` takes episodes [E, N, images a class, H, W, C]
  (`episodes.episode_dataset`); `fit_centers`, `evaluate` and `predict` take plain
  batches of images.

  ```python
  encoder = encoders.mlp([28, 28, 1])
  model = DBLE(encoder, confidence_models.confidence_mlp(512), num_classes=10, num_shots=10)
  model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
  model.fit(episodes, steps_per_epoch=1000, centers_data=train, validation_data=validation)
  model.fit_sigma_scale(validation)
  model.predict(images)['confidence']
  ```

  Attributes:
    sigma_scale: [candidates], alpha: what a candidate's sigma is multiplied by at
      inference; 1, as in the paper, for all but the one that `fit_sigma_scale` chose.
    temperature: [candidates], T: what distances are divided by there; zero, which
      counts as one, for all but that one.
    held_out_nll: [candidates], the NLLs that decided.
  """

  confidence_trainings = ('errors', 'all', 'held_out')

  def __init__(self, *args, scaling: str = 'sigma_scale', **kwargs):
    """Builds the model around an encoder and confidence models.

    Args:
      *args: as in `LearningFromErrors` and `Prototypical`.
      scaling: what `fit_sigma_scale` fits: 'none' (the paper as printed),
        'sigma_scale' or 'sigma_scale_and_temperature'.
      **kwargs: as in `LearningFromErrors` and `Prototypical`. In addition,
        confidence_training can be 'held_out': phi learns from errors on images that
        theta has not seen, in `complete`.
    """
    super().__init__(*args, **kwargs)
    if scaling not in calibration.SCALINGS:
      raise UserError(
          f'scaling is {", ".join(calibration.SCALINGS[:-1])} or '
          f'{calibration.SCALINGS[-1]}, not {scaling!r}.')
    self.scaling = scaling
    shape = [len(self.candidates)]
    self.sigma_scale = self.add_state('sigma_scale', shape, 'ones')
    self.temperature = self.add_state('temperature', shape, 'zeros')
    self.held_out_nll = self.add_state('held_out_nll', shape, 'zeros')

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """Labels images and says how sure it is.

    Args:
      images: [B, H, W, C], as the encoder takes them.
      training: passed on to the encoder.

    Returns:
      label: [B] int32, the nearest center (Eq. 6).
      confidence: [B], the averaged softmax at that label (Eq. 10).
      probabilities: [B, M], the averaged softmax.
      sigma: [B, D] (Eq. 8), times alpha.
      distance: [B], d'_t, to the predicted center.
      distances: [B, M], to every center.
    """
    centers = self.fitted_centers()
    h = self.encode(images, training)
    sigma = (tf.convert_to_tensor(self.sigma_scale)[self.chosen]
             * tf.cast(self.confidence_model(h, training=False), tf.float32))
    temperature = tf.convert_to_tensor(self.temperature)[self.chosen]
    probabilities = confidence.averaged_probabilities(
        h, sigma, centers, tf.convert_to_tensor(self.noise),
        tf.where(temperature > 0.0, temperature, 1.0))
    return self.with_sigma(self.answers(h, centers), probabilities, sigma)

  @replicas.training_step
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

  # After training

  @property
  def needs_held_out(self) -> bool:
    return (self.scaling != 'none' or len(self.candidates) > 1
            or 'held_out' in self.confidence_training)

  def complete(self, train, held_out=None, verbose=0) -> None:
    """Fits the class centers on `train`, if there are none, then alpha on `held_out`."""
    super().complete(train, verbose=verbose)
    if self.needs_held_out:
      self.fit_sigma_scale(held_out, verbose)

  def fit_sigma_scale(
      self, held_out: tf.data.Dataset, verbose: int = 0
  ) -> list[calibration.Fitted]:
    """Fits what `scaling` names for each candidate, and chooses the best by NLL.

    Candidates that learn from held-out errors do so first, on one half of the images;
    then all are fitted and judged on the other half, and the best of them is fitted
    once more on all that it has not learned from. Where not even the best lowers the
    NLL by more than the standard error of that gain, there is no sigma: alpha is 0.

    Args:
      held_out: batches of (images, class ids) that `fit` has not seen.
      verbose: 1 shows a progress bar.

    Returns:
      What was fitted, candidate by candidate, with the NLL that decided between them.
    """
    if held_out is None:
      raise UserError(
          'Scaling sigma, choosing between confidence models and learning from held-out '
          'errors need images that the encoder was not trained on: give them as '
          'held_out, or build the model with one confidence model that learns from '
          "other errors, and scaling='none'.")
    self.require_fitted()
    h, class_ids = self.encode_labelled(held_out, verbose)
    if 'held_out' in self.confidence_training:
      rows, _ = calibration.halves(class_ids)
      held_out_errors.learn(self, h[rows], class_ids[rows])
    data = [self.held_out_data(h, class_ids, g, training)
            for g, training in zip(self.candidates, self.confidence_training)]
    fitted = [calibration.fit(judged_on, self.scaling) for _, judged_on in data]
    losses = [one.nll if np.isfinite(one.nll) else np.inf for one in fitted]
    if not np.isfinite(min(losses)):
      raise UserError(
          'No confidence model gives numbers on the held-out images: training has '
          'diverged. Lower the learning rates.')
    best = int(np.argmin(losses))
    scaled_on, judged_on = data[best]
    if self.scaling != 'none' and not calibration.pays(judged_on, fitted[best]):
      fitted[best] = calibration.NO_SIGMA._replace(nll=losses[best])
    elif scaled_on is not judged_on:
      fitted[best] = calibration.fit(scaled_on, self.scaling)._replace(nll=losses[best])
    self.held_out_nll.assign(losses)
    is_best = np.arange(len(fitted)) == best
    self.sigma_scale.assign(np.where(is_best, fitted[best].sigma_scale, 1.0))
    self.temperature.assign(np.where(is_best, fitted[best].temperature, 0.0))
    self.choose(best)
    return fitted

  def load_own_variables(self, store):
    super().load_own_variables(store)
    scaled = np.flatnonzero(self.temperature.numpy())
    if len(scaled):  # The choice is where alpha is, also where weights are all we get.
      self.choose(int(scaled[0]))

  def require_complete(self) -> None:
    """Raises a `UserError` unless centers and, where asked for, alpha are fitted."""
    super().require_complete()
    if self.needs_held_out and not self.temperature[self.chosen] > 0.0:
      raise UserError(
          "This model's sigma has not been scaled yet: call fit_sigma_scale(held_out) "
          'with batches that the encoder was not trained on. Sigma as the paper has it '
          "needs none: one confidence model that learns beside theta, scaling='none'.")

  def encode_labelled(
      self, dataset: tf.data.Dataset, verbose: int = 0
  ) -> tuple[np.ndarray, np.ndarray]:
    """Representations [n, D] and class ids [n] of batches of (images, class ids)."""
    classifier.require_labelled_batches(dataset)
    pairs = classifier.on_labelled_batches(_encode, self, dataset, verbose)
    return tuple(np.concatenate(parts) for parts in zip(*pairs))

  def held_out_data(
      self,
      h: np.ndarray,
      class_ids: np.ndarray,
      g: Callable[[np.ndarray], np.ndarray],
      confidence_training: str | None = None,
  ) -> tuple[calibration.HeldOut, calibration.HeldOut]:
    """What one kind of sigma can be scaled on, and what all kinds are judged on.

    Both are all images, except what candidates learned from: those of 'held_out' are
    not scaled on it, and none is judged on it.

    Args:
      h: [n, D], of held-out images.
      class_ids: [n].
      g: h -> sigma.
      confidence_training: what g learned from, if it learned.
    """
    everything = self.with_centers(h, class_ids, g)
    if 'held_out' not in self.confidence_training:
      return everything, everything
    _, rows = calibration.halves(class_ids)
    unseen = self.with_centers(h[rows], class_ids[rows], g)
    return (unseen if confidence_training == 'held_out' else everything), unseen

  def with_centers(
      self, h: np.ndarray, class_ids: np.ndarray, g: Callable[[np.ndarray], np.ndarray]
  ) -> calibration.HeldOut:
    """All that Eq. 10 needs of n images, whose sigma is g(h)."""
    sigma = np.concatenate([
        g(h[start:start + _BATCH]) for start in range(0, len(h), _BATCH)])
    return calibration.HeldOut(
        h, sigma.astype(np.float32), class_ids, tf.convert_to_tensor(self.centers),
        tf.convert_to_tensor(self.noise))

  def make_train_function(self, force=False):
    # Training moves theta and phi: what was fitted to them fits no more.
    self.sigma_scale.assign(tf.ones_like(self.sigma_scale))
    for state in (self.temperature, self.held_out_nll):
      state.assign(tf.zeros_like(state))
    self.choose(0)
    return super().make_train_function(force)

  def get_config(self):
    return {**super().get_config(), 'scaling': self.scaling}


def _encode(model, images, class_ids):
  return tf.cast(model.encode(images), tf.float32), class_ids
