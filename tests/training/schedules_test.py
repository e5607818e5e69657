import keras
import numpy as np
import pytest
import tensorflow as tf

import dble_tf
from dble_tf.training.schedules import WarmUp
from tests import linear

KINDS = {
    'constant': lambda: 0.4,
    'step': lambda: keras.optimizers.schedules.PiecewiseConstantDecay(
        [5, 8], [0.4, 0.04, 0.004]),
    'cosine': lambda: keras.optimizers.schedules.CosineDecay(0.4, 10),
}


def cosine(step):
  return 0.4 * (1 + np.cos(np.pi * step / 10)) / 2


@pytest.mark.parametrize('kind, expected', [
    # Steps 0 and 1 are in warm-up, 3 is its end, 6 the middle, 9 the last, 10 the end.
    ('constant', [0.1, 0.2, 0.4, 0.4, 0.4, 0.4]),
    ('step', [0.1, 0.2, 0.4, 0.04, 0.004, 0.004]),
    ('cosine', [0.1, cosine(1) / 2, cosine(3), cosine(6), cosine(9), 0.0])])
def test_rates_rise_linearly_to_those_of_the_schedule(kind, expected):
  schedule = WarmUp(KINDS[kind](), 4)
  steps = [0, 1, 3, 6, 9, 10]
  rates = [float(schedule(step)) for step in steps]
  np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-8)
  traced = tf.function(schedule, jit_compile=True)
  np.testing.assert_allclose(
      [traced(tf.constant(step, tf.int64)) for step in steps], expected,
      rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize('kind', KINDS)
def test_a_model_saved_with_it_loads_with_it(kind, tmp_path):
  model = dble_tf.DBLE(linear.encoder(), 4, num_shots=1)
  model.compile(keras.optimizers.SGD(WarmUp(KINDS[kind](), 4)))
  model.save(tmp_path / 'model.keras')
  optimizer = keras.models.load_model(tmp_path / 'model.keras').optimizer
  for step in (0, 2, 7):
    optimizer.iterations.assign(step)
    model.optimizer.iterations.assign(step)
    assert float(optimizer.learning_rate) == float(model.optimizer.learning_rate)


def test_sgd_descends_with_the_rate_of_each_step():
  variable = keras.Variable(10.0)
  optimizer = keras.optimizers.SGD(WarmUp(1.0, 4))
  values = []
  for _ in range(5):
    optimizer.apply([tf.constant(1.0)], [variable])
    values.append(float(variable))
  np.testing.assert_allclose(values, [9.75, 9.25, 8.5, 7.5, 6.5])
