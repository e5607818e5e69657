import pathlib

import keras
import numpy as np
import pytest
from absl import flags

from dble_tf import baselines
from dble_tf import data as datasets
from launch import experiment
from launch import random_data

LAUNCH = pathlib.Path(experiment.__file__).parent


def parse(*arguments):
  values = flags.FlagValues()
  experiment.define_flags(values)
  values(['test', *arguments])
  return values


@pytest.fixture(scope='module')
def digits():
  return datasets.load('digits')


@pytest.mark.parametrize('name', [
    'digits', 'mnist', 'cifar10', 'cifar100', 'tiny_imagenet'])
def test_each_flagfile_is_an_experiment_as_the_paper_describes(name, monkeypatch):
  monkeypatch.chdir(LAUNCH.parent)
  values = parse(f'--flagfile=launch/{name}.flags')
  assert values.experiment == values.dataset == name
  assert values.learning_rate == 0.1 and values.weight_decay == 5e-4
  assert values.num_samples == 20 and values.representation_size == 512
  assert values.validation_size > 0
  encoder = {'cifar10': 'vgg11', 'cifar100': 'resnet50', 'tiny_imagenet': 'resnet50'}
  assert values.encoder == encoder.get(name, 'mlp')


@pytest.mark.parametrize('name, episode', [
    ('mnist', 'leave_one_out'), ('cifar10', 'leave_one_out'),
    ('cifar10_short', 'leave_one_out'), ('cifar100', 'support_query')])
def test_flagfiles_ask_for_the_episodes_that_were_found_better(
    name, episode, monkeypatch):
  monkeypatch.chdir(LAUNCH.parent)
  assert parse(f'--flagfile=launch/{name}.flags').episode == episode


@pytest.mark.parametrize('argument', [
    '--num_shots=0', '--num_queries=0', '--num_ways=1', '--epochs=0',
    '--learning_rate=-1', '--learning_rate=nan', '--weight_decay=inf',
    '--decay_at=0.75,0.5', '--decay_at=half', '--decay_at=1.5', '--seed=-1',
    '--validation_size=-1', '--encoder=resnet18', '--dataset=cifar', '--num_samples=0',
    '--batch_size=many', '--method=magic', '--episode=none', '--mixup_alpha=0',
    '--dropout=1', '--label_smoothing=1.5', '--sparse_share=-1', '--ensemble_size=0',
    '--confidence_candidates=some', '--confidence_candidates=',
    '--scaling=much', '--dtype_policy=float8'])
def test_nonsense_values_are_rejected(argument):
  with pytest.raises(flags.IllegalFlagValueError):
    parse(argument)


def test_rates_fall_by_ten_where_asked_and_gradients_are_clipped(digits):
  values = parse('--epochs=10', '--steps_per_epoch=10', '--decay_at=0.5,0.75',
                 '--confidence_learning_rate=0.2')
  model = experiment.build_model(values, digits)
  for optimizer, rate in ((model.optimizer, 0.1), (model.confidence_optimizer, 0.2)):
    assert optimizer.momentum == 0.9 and optimizer.clipnorm == 1.0
    schedule = [float(optimizer._learning_rate(step)) for step in (0, 50, 51, 76, 99)]
    np.testing.assert_allclose(
        schedule, [rate, rate, rate / 10, rate / 100, rate / 100], rtol=1e-5)


def test_without_decay_the_rate_is_constant(digits):
  model = experiment.build_model(parse('--decay_at='), digits)
  assert float(model.optimizer.learning_rate) == pytest.approx(0.1)


def test_episodes_have_all_classes_unless_told_otherwise(digits):
  arguments = ['--num_shots=2', '--num_queries=3', '--episodes_per_step=4']
  everything = experiment.make_training_data(parse(*arguments), digits)
  some = experiment.make_training_data(parse('--num_ways=6', *arguments), digits)
  assert everything.element_spec.shape == [4, 10, 5, 8, 8, 1]
  assert some.element_spec.shape == [4, 6, 5, 8, 8, 1]


def test_training_images_are_augmented_as_the_data_set_asks():
  images = np.random.default_rng(0).integers(256, size=[8, 6, 6, 3], dtype=np.uint8)
  originals = {image.tobytes() for image in images}

  def share_of_originals(policy):
    data = datasets.from_arrays((images, np.arange(8) % 2), (images, np.arange(8) % 2),
                                augmentation_policy=policy)
    episode = next(experiment.make_training_data(
        parse('--num_shots=2', '--num_queries=2'), data).as_numpy_iterator())
    return np.mean([image.tobytes() in originals for image in episode.reshape(8, 6, 6, 3)])

  assert share_of_originals('none') == 1
  assert share_of_originals('crop_flip') < 0.5


def test_plain_training_sees_as_many_images_an_update_as_episodes_hold(digits):
  arguments = ['--num_shots=2', '--num_queries=3', '--num_ways=6',
               '--episodes_per_step=4', '--method=vanilla']
  values = parse(*arguments)
  images, class_ids = experiment.make_training_data(values, digits).element_spec
  assert images.shape == [4 * 6 * 5, 8, 8, 1] and class_ids.shape == [4 * 6 * 5]
  assert experiment.images_per_step(values, digits) == 4 * 6 * 5
  model = experiment.build_model(values, digits)
  assert isinstance(model, baselines.Vanilla)
  assert model.optimizer.momentum == 0.9 and model.optimizer.clipnorm == 1.0


def test_the_settings_of_a_run_are_a_flagfile_that_gives_the_same_again(tmp_path):
  def config(*arguments):
    values = flags.FlagValues()
    names = experiment.define_flags(values)
    values(['test', *arguments])
    return experiment.config(values, names), values

  text, _ = config(
      '--dataset=digits', '--decay_at=0.3,0.6', '--seed=5', '--learning_rate=0.03')
  path = tmp_path / 'config.flags'
  path.write_text(text)
  again, parsed = config(f'--flagfile={path}')
  assert again == text
  assert parsed.decay_at == ['0.3', '0.6']
  assert (parsed.seed, parsed.learning_rate, parsed.num_ways) == (5, 0.03, None)


def test_settings_of_other_methods_are_not_among_those_of_a_run():
  def config(*arguments):
    values = parse(*arguments)
    return experiment.config(values, list(values))

  assert config('--method=vanilla') == config('--method=vanilla', '--mixup_alpha=1')
  assert config('--method=mixup') != config('--method=mixup', '--mixup_alpha=1')
  assert config('--method=vanilla') == config(
      '--method=vanilla', '--episode=leave_one_out', '--num_samples=3',
      '--confidence_learning_rate=1')
  assert config('--method=dble') != config('--method=dble', '--num_samples=3')
  assert 'confidence_candidates' in config('--method=dble')
  assert 'confidence_candidates' not in config('--method=prototypical')


def test_changed_flags_leave_the_others_and_the_original_alone():
  values = parse('--seed=3', '--num_shots=4')
  changed = experiment.changed(values, seed=5, method='vanilla')
  assert (changed.seed, changed.method, changed.num_shots) == (5, 'vanilla', 4)
  assert (values.seed, values.method) == (3, 'dble')


def test_leave_one_out_is_a_flag(digits):
  model = experiment.build_model(parse('--episode=leave_one_out'), digits)
  assert model.num_shots is None
  model = experiment.build_model(
      parse('--episode=support_query', '--num_shots=7'), digits)
  assert model.num_shots == 7


def test_the_model_has_the_sizes_of_the_flags(digits):
  model = experiment.build_model(
      parse('--representation_size=32', '--num_samples=7'), digits)
  assert model.encoder.output_shape == (None, 32)
  assert model.noise.shape == (7, 32)


def test_the_flags_of_a_run_come_from_its_config(tmp_path):
  config = tmp_path / 'config.flags'
  config.write_text('--dataset=digits\n--seed=4\n--data_dir=here\n')
  values = experiment.of_run(config)
  assert (values.dataset, values.seed, values.data_dir) == ('digits', 4, 'here')
  assert experiment.of_run(config, 'there').data_dir == 'there'


def test_precision_and_batch_norm_are_as_asked_and_part_of_the_settings():
  data = random_data.make('cifar10', 100)
  values = parse('--dataset=cifar10', '--encoder=vgg11', '--method=vanilla',
                 '--dtype_policy=mixed_bfloat16', '--synchronized_batch_norm')
  model = experiment.build_model(values, data)
  norms = [layer for layer in model.encoder.layers
           if isinstance(layer, keras.layers.BatchNormalization)]
  assert len(norms) == 8
  for layer in norms:
    assert layer.synchronized and layer.compute_dtype == 'bfloat16'
    assert layer.gamma.dtype == 'float32'
  assert keras.config.dtype_policy().name == 'float32'  # For others it stays.
  text = experiment.config(values, ['dtype_policy', 'synchronized_batch_norm'])
  assert text == '--dtype_policy=mixed_bfloat16\n--synchronized_batch_norm\n'


def test_a_run_with_defaults_has_the_settings_that_it_always_had():
  values = flags.FlagValues()
  text = experiment.config(parse('--dataset=digits'), experiment.define_flags(values))
  assert 'dtype_policy' not in text and 'batch_norm' not in text


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
