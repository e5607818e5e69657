import keras
import numpy as np
import pytest

from launch.runs import time_left

STEPS = 6


class Clock(keras.callbacks.Callback):
  """A minute passes before each step's end."""

  def __init__(self):
    super().__init__()
    self.now = 0.0

  def on_train_batch_end(self, batch, logs=None):
    self.now += 60.0


def test_the_time_left_is_that_of_all_epochs(monkeypatch, capsys):
  clock = Clock()
  monkeypatch.setattr(time_left.time, 'monotonic', lambda: clock.now)
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile('sgd', 'mse')
  model.fit(
      np.ones([STEPS, 1]), np.ones([STEPS, 1]), batch_size=1, epochs=2, verbose=0,
      callbacks=[clock, time_left.TimeLeft(epochs=21, steps_per_epoch=STEPS)])
  # After the first epoch, 20 of 6 minutes.
  assert capsys.readouterr().out == '2 h 0 min left\n'


@pytest.mark.parametrize('seconds, text', [
    (59.4, '59 s'), (100, '2 min'), (3599, '1 h 0 min'), (90061, '25 h 1 min')])
def test_durations_are_in_the_units_that_people_use(seconds, text):
  assert time_left.duration(seconds) == text
