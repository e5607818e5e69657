"""Temperature scaling (Guo et al., 2017): plain training, then one number."""

import keras
import tensorflow as tf

from dble_tf import calibration
from dble_tf.baselines.vanilla import softmax_answers
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.classifier import Representations
from dble_tf.errors import UserError


@keras.saving.register_keras_serializable(package='dble_tf')
class TemperatureScaling(Vanilla):
  """Plain training whose logits are divided by a temperature at inference.

  Attributes:
    temperature: a scalar, 1 until calibration.
    calibration_size: the number of held-out images that it was fitted on.
  """

  needs_held_out = True

  def __init__(
      self, encoder: keras.Model, num_classes: int, *, weight_decay: float = 5e-4,
      name: str | None = None, **kwargs):
    """Builds the model around an encoder; see `Vanilla`."""
    super().__init__(
        encoder, num_classes, weight_decay=weight_decay, name=name, **kwargs)
    self.temperature = self.add_state('temperature', [], 'ones')
    self.calibration_size = self.add_state('calibration_size', [], 'zeros')

  def answer(self, h: tf.Tensor) -> dict[str, tf.Tensor]:
    """As `Vanilla.answer`, with logits divided by the temperature."""
    return softmax_answers(self.logits(h) / tf.convert_to_tensor(self.temperature))

  def fit_held_out(self, held_out: Representations) -> None:
    """Fits the temperature."""
    logits = keras.ops.convert_to_numpy(self.logits(held_out.h))
    self.temperature.assign(calibration.fit_temperature(logits, held_out.class_ids))
    self.calibration_size.assign(len(held_out.h))

  def forget_calibration(self) -> None:
    self.temperature.assign(1.0)
    self.calibration_size.assign(0.0)

  def require_calibrated(self) -> None:
    if not tf.convert_to_tensor(self.calibration_size) > 0:
      raise UserError(
          'This model has no temperature yet: call calibrate(train, held_out) with '
          'batches of (images, class ids).')

  def take_trained(self, other: Vanilla) -> None:
    """Copies the trained weights of a model with the same encoder."""
    super().take_trained(other)
    self.forget_calibration()
