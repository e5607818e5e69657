import numpy as np
import pytest

from dble_tf.data import load
from launch.runs import components
from launch.settings import experiment


def parse(*arguments):
  return experiment.parse(arguments)


def rates(optimizer, steps):
  found = []
  for step in steps:
    optimizer.iterations.assign(step)
    found.append(float(optimizer.learning_rate))
  return found


def test_rates_fall_by_ten_where_asked_and_gradients_are_clipped():
  values = parse('--epochs=10', '--steps_per_epoch=10', '--decay_at=0.5,0.75')
  optimizer = components.optimizer(values, 0.2)
  assert optimizer.momentum == 0.9 and optimizer.clipnorm == 1.0
  np.testing.assert_allclose(
      rates(optimizer, (0, 50, 51, 75, 76, 99)),
      [0.2, 0.2, 0.02, 0.02, 0.002, 0.002], rtol=1e-5)


def test_without_decay_the_rate_is_constant():
  optimizer = components.optimizer(parse('--decay_at='), 0.1)
  np.testing.assert_allclose(rates(optimizer, (0, 10_000)), 0.1, rtol=1e-6)


def test_a_cosine_falls_to_zero_over_the_whole_training():
  optimizer = components.optimizer(
      parse('--epochs=10', '--steps_per_epoch=10', '--schedule=cosine'), 0.2)
  np.testing.assert_allclose(
      rates(optimizer, (0, 25, 50, 75, 100)),
      [0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5), 0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('arguments, expected', [
    (['--decay_at=0.5'], [0.02, 0.1, 0.2, 0.2, 0.02]),
    (['--decay_at='], [0.02, 0.1, 0.2, 0.2, 0.2]),
    (['--schedule=cosine'],
     [0.02, 0.05 * (1 + np.cos(0.04 * np.pi)), 0.1 * (1 + np.cos(0.09 * np.pi)), 0.1,
      0.1 * (1 + np.cos(0.99 * np.pi))])])
def test_rates_rise_over_the_warm_up_of_any_schedule(arguments, expected):
  values = parse('--epochs=10', '--steps_per_epoch=10', '--warmup=0.1', *arguments)
  np.testing.assert_allclose(
      rates(components.optimizer(values, 0.2), (0, 4, 9, 50, 99)), expected, rtol=1e-4)


def test_weights_of_theta_are_averaged_if_asked():
  from launch.runs import build
  model = build.build_model(parse('--ema=0.9'), load('digits'))
  assert model.optimizer.use_ema and model.optimizer.ema_momentum == 0.9
  assert not model.confidence_optimizer.use_ema
  assert not build.build_model(parse(), load('digits')).optimizer.use_ema


@pytest.mark.parametrize('arguments, expected', [
    (['--episode=support_query', '--num_shots=7'], 7),
    (['--episode=leave_one_out', '--num_shots=7'], None)])
def test_leave_one_out_has_no_supports(arguments, expected):
  assert components.num_shots(parse(*arguments)) == expected


def test_images_per_step_are_those_of_all_episodes():
  digits = load('digits')
  arguments = ['--num_shots=2', '--num_queries=3', '--episodes_per_step=4']
  assert components.images_per_step(parse(*arguments), digits) == 4 * 10 * 5
  assert components.images_per_step(
      parse('--num_ways=6', *arguments), digits) == 4 * 6 * 5


def test_both_optimizers_have_rates_of_their_own():
  from launch.runs import build
  model = build.build_model(
      parse('--learning_rate=0.3', '--confidence_learning_rate=0.2'), load('digits'))
  assert rates(model.optimizer, [0]) == pytest.approx([0.3])
  assert rates(model.confidence_optimizer, [0]) == pytest.approx([0.2])
