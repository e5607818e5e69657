"""Learning rate schedules besides those of Keras."""

import keras

_Schedule = keras.optimizers.schedules.LearningRateSchedule


@keras.saving.register_keras_serializable(package='dble_tf')
class WarmUp(_Schedule):
  """A schedule whose rates rise linearly over the first steps.

  The rate of step i, from 0, is schedule(i) * min(1, (i + 1) / steps).
  """

  def __init__(self, schedule: _Schedule | float, steps: int):
    """Wraps a schedule.

    Args:
      schedule: the rates without warm-up, or one constant rate.
      steps: the number of steps until they are reached, at least 1.
    """
    super().__init__()
    self.schedule = schedule
    self.steps = steps

  def __call__(self, step):
    rate = self.schedule(step) if callable(self.schedule) else self.schedule
    share = (keras.ops.cast(step, 'float32') + 1.0) / self.steps
    return rate * keras.ops.minimum(share, 1.0)

  def get_config(self):
    return {'schedule': keras.saving.serialize_keras_object(self.schedule),
            'steps': self.steps}

  @classmethod
  def from_config(cls, config):
    schedule = keras.saving.deserialize_keras_object(config['schedule'])
    return cls(schedule, config['steps'])
