"""Temperature scaling (Guo et al., 2017): plain training, then one number."""

import keras
import numpy as np
import tensorflow as tf
from scipy import optimize
from scipy import special

from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import predict_labelled
from dble_tf.errors import UserError

_BOUNDS = (0.05, 20.0)


@keras.saving.register_keras_serializable(package='dble_tf')
class TemperatureScaling(Vanilla):
  """Plain training whose logits are divided by a temperature at inference.

  Attributes:
    temperature: a scalar; zero, which counts as one, until `complete` fits it on
      held-out data.
  """

  needs_held_out = True

  def __init__(self, encoder: keras.Model, num_classes: int, **kwargs):
    super().__init__(encoder, num_classes, **kwargs)
    self.temperature = self.add_state('temperature', [], 'zeros')

  def call(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
    """As `Vanilla.call`, with logits divided by the temperature outside training."""
    logits = self.linear(self.encode(images, training))
    if not training:
      temperature = tf.convert_to_tensor(self.temperature)
      logits /= tf.where(temperature > 0.0, temperature, 1.0)
    return self.answers(logits)

  def complete(self, train, held_out=None, verbose=0) -> None:
    """Fits the temperature on `held_out`."""
    if held_out is None:
      raise UserError(
          'Temperature scaling is fitted on data that the encoder was not trained '
          'on: give it as held_out.')
    self.temperature.assign(0.0)
    answers, class_ids = predict_labelled(self, held_out, verbose)
    self.temperature.assign(fit_temperature(answers['logits'], class_ids))

  def require_fitted(self) -> None:
    """Raises a `UserError` unless the temperature has been fitted."""
    if self.temperature == 0.0:
      raise UserError(
          'This model has no temperature yet: call complete(train, held_out) with '
          'batches of (images, class ids).')

  def take_trained(self, other: Vanilla) -> None:
    """Takes what `fit` learned in another model of the same encoder."""
    super().take_trained(other)
    self.temperature.assign(0.0)

  def make_train_function(self, force=False):
    # Training moves theta: a temperature of before does not fit any more.
    self.temperature.assign(0.0)
    return super().make_train_function(force)


def fit_temperature(logits: np.ndarray, class_ids: np.ndarray) -> float:
  """The temperature between 0.05 and 20 of the smallest NLL, [n, M] and [n] -> T."""
  logits = np.asarray(logits, np.float64)
  true_logits = logits[np.arange(len(logits)), class_ids]

  def nll(log_temperature):
    inverse = np.exp(-log_temperature)
    return np.mean(
        special.logsumexp(logits * inverse, axis=1) - true_logits * inverse)

  found = optimize.minimize_scalar(
      nll, bounds=np.log(_BOUNDS), method='bounded', options={'xatol': 1e-6})
  return float(np.exp(found.x))
