import pytest
from absl import flags

from dble_tf.errors import UserError
from launch.settings import experiment


def parse(*arguments):
  return experiment.parse(arguments)


def config(*arguments):
  values = flags.FlagValues()
  names = experiment.define_flags(values)
  values(['test', *arguments])
  return experiment.config(values, names)


@pytest.mark.parametrize('name, encoder', [
    ('digits', 'mlp'), ('mnist', 'mlp'), ('cifar10', 'vgg11'),
    ('cifar100', 'thin_resnet'), ('tiny_imagenet', 'thin_resnet')])
def test_each_flag_file_is_of_a_data_set_with_its_encoder(name, encoder):
  values = parse(f'--flagfile={name}')
  assert values.experiment == values.dataset == name
  assert values.encoder == encoder
  assert values.confidence_learning_rate == 0.1
  assert values.num_samples == 20 and values.representation_size == 512
  assert values.validation_size > 0


@pytest.mark.parametrize('name', ['cifar10', 'cifar100', 'tiny_imagenet'])
def test_the_experiments_for_accelerators_have_the_rates_of_the_released_code(name):
  values = parse(f'--flagfile={name}')
  assert values.learning_rate == 0.1 and values.weight_decay == 5e-4


@pytest.mark.parametrize('argument', [
    '--num_shots=0', '--num_queries=0', '--num_ways=1', '--epochs=0',
    '--learning_rate=-1', '--learning_rate=nan', '--weight_decay=inf',
    '--width=0', '--width=nan', '--schedule=linear', '--warmup=1', '--warmup=-0.1',
    '--ema=1', '--ema=-0.5',
    '--decay_at=0.75,0.5', '--decay_at=half', '--decay_at=1.5', '--seed=-1',
    '--validation_size=-1', '--threshold_size=-1', '--train_size=0', '--split_seed=-1',
    '--encoder=resnet18', '--dataset=cifar', '--num_samples=0',
    '--batch_size=many', '--method=magic', '--episode=none', '--mixup_alpha=0',
    '--dropout=1', '--label_smoothing=1.5', '--sparse_share=-1', '--ensemble_size=0',
    '--confidence_training=held_out', '--squared_scale=-1', '--squared_scale=inf',
    '--episode_smoothing=1', '--episode_smoothing=-0.1',
    '--scaling=much', '--dtype_policy=float8'])
def test_nonsense_values_are_rejected(argument):
  with pytest.raises(flags.IllegalFlagValueError):
    parse(argument)


def test_a_command_may_require_a_data_set():
  values = flags.FlagValues()
  experiment.define_flags(values)
  experiment.require_dataset(values)
  with pytest.raises(flags.IllegalFlagValueError, match='--flagfile=digits'):
    values(['test'])
  values(['test', '--dataset=mnist'])


def test_the_name_is_that_of_the_data_unless_given():
  assert experiment.name(parse('--dataset=mnist')) == 'mnist'
  assert experiment.name(parse('--dataset=mnist', '--experiment=wide')) == 'wide'


def test_the_settings_of_a_run_are_a_flag_file_that_gives_the_same_again(tmp_path):
  text = config(
      '--dataset=digits', '--decay_at=0.3,0.6', '--seed=5', '--learning_rate=0.03',
      '--squared_scale=0.25')
  path = tmp_path / 'config.flags'
  path.write_text(text)
  assert config(f'--flagfile={path}') == text
  values = parse(f'--flagfile={path}')
  assert values.decay_at == ['0.3', '0.6']
  assert (values.seed, values.learning_rate, values.num_ways) == (5, 0.03, None)
  assert values.squared_scale == 0.25


def test_settings_of_other_methods_are_not_among_those_of_a_run():
  assert config('--method=vanilla') == config('--method=vanilla', '--mixup_alpha=1')
  assert config('--method=mixup') != config('--method=mixup', '--mixup_alpha=1')
  assert config('--method=vanilla') == config(
      '--method=vanilla', '--episode=leave_one_out', '--num_samples=3',
      '--confidence_learning_rate=1')
  assert config('--method=dble') != config('--method=dble', '--num_samples=3')
  for name in ('confidence_training', 'scaling'):
    assert name in config('--method=dble')
    assert name not in config('--method=prototypical')
  for argument in ('--squared_scale=0.25', '--episode_smoothing=0.1'):
    for method, has_episodes in (
        ('dble', True), ('prototypical', True), ('vanilla', False)):
      assert (argument in config(f'--method={method}', argument)) == has_episodes


@pytest.mark.parametrize('arguments, has_target, size', [
    (['--validation_size=31'], True, 15), (['--validation_size=31'], False, 0),
    ([], True, 0), (['--validation_size=31', '--threshold_size=4'], True, 4),
    (['--validation_size=31', '--threshold_size=4'], False, 4),
    (['--validation_size=31', '--threshold_size=0'], True, 0)])
def test_half_of_the_held_out_images_choose_a_threshold_unless_told_otherwise(
    arguments, has_target, size):
  values = parse(*arguments)
  before = values.threshold_size
  resolved = experiment.resolved(values, has_target)
  assert resolved.threshold_size == size and values.threshold_size == before
  assert resolved.validation_size == values.validation_size


def test_the_division_of_the_data_is_a_setting_of_a_run():
  text = config('--dataset=digits')
  assert '--split_seed=0\n' in text and 'train_size' not in text
  for argument in ('--split_seed=1', '--train_size=500', '--threshold_size=0'):
    assert f'{argument}\n' in config('--dataset=digits', argument)


def test_digits_have_images_for_a_threshold():
  values = parse('--flagfile=digits')
  assert 0 < values.threshold_size < values.validation_size


def test_the_place_of_the_data_is_no_setting_of_a_run():
  assert config('--dataset=mnist', '--data_dir=here') == config('--dataset=mnist')


def test_a_run_with_defaults_does_not_name_precision_and_batch_norm():
  text = config('--dataset=digits')
  assert 'dtype_policy' not in text and 'batch_norm' not in text
  text = config('--dtype_policy=mixed_bfloat16', '--synchronized_batch_norm')
  assert '--dtype_policy=mixed_bfloat16\n' in text
  assert '--synchronized_batch_norm\n' in text


def test_changed_flags_leave_the_others_and_the_original_alone():
  values = parse('--seed=3', '--num_shots=4')
  changed = experiment.changed(values, seed=5, method='vanilla')
  assert (changed.seed, changed.method, changed.num_shots) == (5, 'vanilla', 4)
  assert (values.seed, values.method) == (3, 'dble')


def test_the_flags_of_a_run_come_from_its_config(tmp_path):
  path = tmp_path / 'config.flags'
  path.write_text('--dataset=digits\n--seed=4\n')
  values = experiment.of_run(path)
  assert (values.dataset, values.seed, values.data_dir) == ('digits', 4, None)
  assert experiment.of_run(path, 'there').data_dir == 'there'


def test_a_run_of_another_version_is_refused_with_what_to_do(tmp_path):
  path = tmp_path / 'config.flags'
  path.write_text('--dataset=digits\n--confidence_candidates=default\n')
  with pytest.raises(UserError, match='confidence_candidates.*train again'):
    experiment.of_run(path)
