"""The parts that every method is built from, as the flags describe them."""

import keras
from absl import flags

from dble_tf import encoders
from dble_tf.data import Dataset
from dble_tf.training import schedules

_MOMENTUM = 0.9
_GRADIENT_NORM = 1.0


def encoder(values: flags.FlagValues, dataset: Dataset) -> keras.Model:
  """f_theta with fresh weights."""
  result = encoders.ENCODERS[values.encoder](
      dataset.image_shape, values.representation_size, values.weight_decay,
      values.width)
  if values.synchronized_batch_norm:
    encoders.synchronize_batch_norm(result)
  return result


def optimizer(
    values: flags.FlagValues, initial_rate: float, ema: float = 0.0
) -> keras.optimizers.Optimizer:
  """SGD with momentum and a schedule, gradients clipped variable by variable.

  Args:
    values: the flags.
    initial_rate: the learning rate that the schedule begins with.
    ema: the momentum of an average of the weights; 0: none.
  """
  averaging = {'use_ema': True, 'ema_momentum': ema} if ema else {}
  return keras.optimizers.SGD(
      _schedule(values, initial_rate), momentum=_MOMENTUM, clipnorm=_GRADIENT_NORM,
      **averaging)


def _schedule(values, initial_rate):
  """The learning rate of each step, or a constant."""
  steps = values.epochs * values.steps_per_epoch
  boundaries = [round(float(at) * steps) for at in values.decay_at]
  rate = initial_rate
  if values.schedule == 'cosine':
    rate = keras.optimizers.schedules.CosineDecay(initial_rate, steps)
  elif boundaries:
    rate = keras.optimizers.schedules.PiecewiseConstantDecay(
        boundaries, [initial_rate * 0.1**i for i in range(len(boundaries) + 1)])
  warm_up_steps = round(values.warmup * steps)
  return schedules.WarmUp(rate, warm_up_steps) if warm_up_steps else rate


def num_shots(values: flags.FlagValues) -> int | None:
  """K, or None for leave-one-out."""
  return None if values.episode == 'leave_one_out' else values.num_shots


def images_per_step(values: flags.FlagValues, dataset: Dataset) -> int:
  """The number of images that an update encodes, whatever the method."""
  return (values.episodes_per_step * (values.num_ways or dataset.num_classes)
          * (values.num_shots + values.num_queries))
