import keras
import numpy as np
import pytest

from dble_tf import baselines
from dble_tf import data
from launch.benchmarks import random_data
from launch.runs import build
from launch.settings import experiment


def parse(*arguments):
  return experiment.parse(arguments)


@pytest.fixture(scope='module')
def digits():
  return data.load('digits')


def test_data_are_those_of_the_flags(monkeypatch):
  monkeypatch.setattr(
      data, 'load', lambda *arguments, **others: (arguments, others))
  values = parse(
      '--dataset=mnist', '--data_dir=here', '--validation_size=7', '--split_seed=3',
      '--threshold_size=2', '--train_size=50', '--seed=9')
  assert build.load_dataset(values) == (
      ('mnist', 'here', 7, 3), {'threshold_size': 2, 'train_size': 50})
  assert build.load_dataset(parse('--dataset=mnist', '--seed=9')) == (
      ('mnist', None, 0, 0), {'threshold_size': 0, 'train_size': None})


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
    dataset = data.from_arrays(
        (images, np.arange(8) % 2), (images, np.arange(8) % 2),
        augmentation_policy=policy)
    episode = next(build.make_training_data(
        parse('--num_shots=2', '--num_queries=2'), dataset).as_numpy_iterator())
    return np.mean([
        image.tobytes() in originals for image in episode.reshape(8, 6, 6, 3)])

  assert share_of_originals('none') == 1
  assert share_of_originals('crop_flip') < 0.5


def test_plain_training_sees_as_many_images_per_step_as_episodes_hold(digits):
  values = parse(
      '--num_shots=2', '--num_queries=3', '--num_ways=6', '--episodes_per_step=4',
      '--method=vanilla')
  images, class_ids = build.make_training_data(values, digits).element_spec
  assert images.shape == [4 * 6 * 5, 8, 8, 1] and class_ids.shape == [4 * 6 * 5]
  model = build.build_model(values, digits)
  assert isinstance(model, baselines.Vanilla)
  assert model.optimizer.momentum == 0.9 and model.optimizer.clipnorm == 1.0


def test_the_model_has_the_sizes_of_the_flags(digits):
  model = build.build_model(
      parse('--representation_size=32', '--num_samples=7', '--width=0.25'), digits)
  assert model.encoder.output_shape == (None, 32)
  assert model.encoder.layers[-2].units == 128
  assert model.noise.shape == (7, 32)


def test_precision_and_batch_norm_are_as_asked():
  model = build.build_model(
      parse('--dataset=cifar10', '--encoder=vgg11', '--method=vanilla',
            '--dtype_policy=mixed_bfloat16', '--synchronized_batch_norm'),
      random_data.make('cifar10', 100))
  norms = [layer for layer in model.encoder.layers
           if isinstance(layer, keras.layers.BatchNormalization)]
  assert len(norms) == 8
  for layer in norms:
    assert layer.synchronized and layer.compute_dtype == 'bfloat16'
    assert layer.gamma.dtype == 'float32'
  assert keras.config.dtype_policy().name == 'float32'  # Others keep theirs.
