import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from dble_tf import baselines
from dble_tf import data
from dble_tf.training import strategies
from launch.benchmarks import random_data
from launch.runs import build
from launch.runs import components
from launch.settings import choices
from launch.settings import devices
from launch.settings import experiment

# While tests are collected: TensorFlow cannot divide the CPU once it is at work.
strategies.virtual_devices(4)


def parse(*arguments):
  return experiment.parse(arguments)


@pytest.fixture(scope='module')
def digits():
  return data.load('digits')


def test_flags_choose_the_strategy():
  def make(*arguments):
    values = flags.FlagValues()
    devices.define_flags(values)
    values(['test', *arguments])
    return build.make_strategy(values)

  assert make() is tf.distribute.get_strategy()
  strategy = make('--strategy=mirrored', '--num_virtual_devices=4')
  assert strategy.num_replicas_in_sync == 4


def test_rates_fall_by_ten_where_asked_and_gradients_are_clipped(digits):
  values = parse('--epochs=10', '--steps_per_epoch=10', '--decay_at=0.5,0.75',
                 '--confidence_learning_rate=0.2')
  model = build.build_model(values, digits)
  for optimizer, rate in ((model.optimizer, 0.1), (model.confidence_optimizer, 0.2)):
    assert optimizer.momentum == 0.9 and optimizer.clipnorm == 1.0
    schedule = []
    for step in (0, 50, 51, 76, 99):
      optimizer.iterations.assign(step)
      schedule.append(float(optimizer.learning_rate))
    np.testing.assert_allclose(
        schedule, [rate, rate, rate / 10, rate / 100, rate / 100], rtol=1e-5)


def test_without_decay_the_rate_is_constant(digits):
  model = build.build_model(parse('--decay_at='), digits)
  assert float(model.optimizer.learning_rate) == pytest.approx(0.1)


def test_episodes_have_all_classes_unless_told_otherwise(digits):
  arguments = ['--num_shots=2', '--num_queries=3', '--episodes_per_step=4']
  everything = build.make_training_data(parse(*arguments), digits)
  some = build.make_training_data(parse('--num_ways=6', *arguments), digits)
  assert everything.element_spec.shape == [4, 10, 5, 8, 8, 1]
  assert some.element_spec.shape == [4, 6, 5, 8, 8, 1]


def test_training_images_are_augmented_as_the_data_set_asks():
  images = np.random.default_rng(0).integers(256, size=[8, 6, 6, 3], dtype=np.uint8)
  originals = {image.tobytes() for image in images}

  def share_of_originals(policy):
    split = (images, np.arange(8) % 2)
    dataset = data.from_arrays(split, split, augmentation_policy=policy)
    episode = next(build.make_training_data(
        parse('--num_shots=2', '--num_queries=2'), dataset).as_numpy_iterator())
    return np.mean([
        image.tobytes() in originals for image in episode.reshape(8, 6, 6, 3)])

  assert share_of_originals('none') == 1
  assert share_of_originals('crop_flip') < 0.5


def test_plain_training_sees_as_many_images_per_step_as_episodes_hold(digits):
  values = parse('--num_shots=2', '--num_queries=3', '--num_ways=6',
                 '--episodes_per_step=4', '--method=vanilla')
  images, class_ids = build.make_training_data(values, digits).element_spec
  assert images.shape == [4 * 6 * 5, 8, 8, 1] and class_ids.shape == [4 * 6 * 5]
  assert components.images_per_step(values, digits) == 4 * 6 * 5
  model = build.build_model(values, digits)
  assert isinstance(model, baselines.Vanilla)
  assert model.optimizer.momentum == 0.9 and model.optimizer.clipnorm == 1.0


def test_leave_one_out_is_a_flag(digits):
  model = build.build_model(parse('--episode=leave_one_out'), digits)
  assert model.num_shots is None
  model = build.build_model(
      parse('--episode=support_query', '--num_shots=7'), digits)
  assert model.num_shots == 7


def test_the_model_has_the_sizes_of_the_flags(digits):
  model = build.build_model(
      parse('--representation_size=32', '--num_samples=7'), digits)
  assert model.encoder.output_shape == (None, 32)
  assert model.noise.shape == (7, 32)


def test_the_confidence_model_is_as_the_flags_describe(digits):
  model = build.build_model(parse(), digits)
  config = model.confidence_model.get_config()
  assert (config['learns_from'], config['normalize_input']) == ('errors', True)
  model = build.build_model(
      parse('--confidence_training=all', '--nonormalize_confidence_input'), digits)
  config = model.confidence_model.get_config()
  assert (config['learns_from'], config['normalize_input']) == ('all', False)


def test_precision_and_batch_norm_are_as_asked():
  dataset = random_data.make('cifar10', 100)
  values = parse('--dataset=cifar10', '--encoder=vgg11', '--method=vanilla',
                 '--dtype_policy=mixed_bfloat16', '--synchronized_batch_norm')
  model = build.build_model(values, dataset)
  norms = [layer for layer in model.encoder.layers
           if isinstance(layer, keras.layers.BatchNormalization)]
  assert len(norms) == 8
  for layer in norms:
    assert layer.synchronized and layer.compute_dtype == 'bfloat16'
    assert layer.gamma.dtype == 'float32'
  assert keras.config.dtype_policy().name == 'float32'  # For others it stays.


def test_a_run_on_virtual_devices_finishes(train_digits, tmp_path):
  process = train_digits(
      tmp_path / 'run', '--strategy=mirrored', '--num_virtual_devices=2', '--epochs=1')
  assert process.returncode == 0, process.stderr
  results = json.loads((tmp_path / 'run' / 'metrics.json').read_text())
  assert results['replicas'] == 2
  assert results['test']['accuracy'] > 0.5  # Chance is 0.1.
  # Devices are not part of a run's identity.
  assert 'virtual' not in (tmp_path / 'run' / 'config.flags').read_text()


def test_episodes_that_do_not_split_are_refused_before_any_work(train_digits, tmp_path):
  process = train_digits(
      tmp_path / 'run', '--num_virtual_devices=2', '--episodes_per_step=3')
  assert process.returncode == 1
  assert 'error: ' in process.stderr and '2 replicas' in process.stderr
  assert 'Traceback' not in process.stderr
  assert not (tmp_path / 'run').exists()


def weights_after(method, num_replicas, steps, dataset):
  values = parse(f'--method={method}', '--num_shots=2', '--num_queries=2',
                 '--episodes_per_step=4', '--dropout=0')
  strategy = tf.distribute.get_strategy() if num_replicas == 1 else (
      tf.distribute.MirroredStrategy(
          [f'CPU:{i}' for i in range(num_replicas)],
          tf.distribute.ReductionToOneDevice()))
  keras.utils.set_random_seed(0)
  with strategy.scope():
    model = build.build_model(values, dataset)
  if getattr(model, 'confidence_model', None):
    model.confidence_model.dropout.rate = 0  # Replicas draw masks of their own.
  model.fit(build.make_training_data(values, dataset), steps_per_epoch=steps,
            shuffle=False, verbose=0)
  return [variable.numpy() for variable in model.trainable_variables]


@pytest.mark.slow
@pytest.mark.parametrize('steps', [10, 100])
@pytest.mark.parametrize(
    'method', [name for name, method in choices.METHODS.items() if not method.base])
def test_replicas_of_each_method_end_in_the_weights_of_one(method, steps):
  dataset = data.load('digits', validation_size=200)
  one, two, four = (weights_after(method, n, steps, dataset) for n in (1, 2, 4))
  differences = [max(np.abs(mine - theirs).max() for mine, theirs in zip(one, several))
                 for several in (two, four)]
  print(f'\n{method}, {steps} steps, largest difference of a weight from one replica: '
        f'two {differences[0]:.1e}, four {differences[1]:.1e}')
  assert max(differences) < 1e-3
