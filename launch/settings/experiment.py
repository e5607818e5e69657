"""The flags of an experiment: everything that determines the outcome of a run."""

import copy
import functools
import math
import pathlib
from collections.abc import Iterable

from absl import flags

from ..cli import flagfiles
from ..cli.groups import group
from . import choices

# Defined here, but not part of a run's identity: data may move.
_NOT_SETTINGS = ('data_dir',)


def define_flags(values: flags.FlagValues) -> list[str]:
  """Defines the flags of an experiment and returns their names, sorted."""
  before = set(values)
  for define in (
      _define_run, _define_data, _define_model, _define_training, _define_calibration,
      _define_baselines):
    define(values)
  return sorted(set(values) - before)


def _definers(values):
  """absl's functions that define flags, for these values."""
  return (functools.partial(define, flag_values=values) for define in (
      flags.DEFINE_string, flags.DEFINE_enum, flags.DEFINE_integer, flags.DEFINE_float,
      flags.DEFINE_bool, flags.DEFINE_list, flags.register_validator))


def _define_run(values):
  string, _, integer, *_ = _definers(values)
  with group('run', values):
    string('experiment', None, 'Name of the experiment (default: the data set).')
    integer('seed', 0, 'Seed of weights, batches, episodes and noise.',
            lower_bound=0, upper_bound=2**31 - 1)


def _define_data(values):
  string, enum, integer, *_ = _definers(values)
  with group('data', values):
    enum('dataset', None, choices.DATASETS, 'Data set.')
    string('data_dir', None, "Directory of TFDS' data sets (default: that of TFDS).")
    integer('validation_size', 0, 'Training images held out, class by class, for '
            'validation.', lower_bound=0)
    integer('threshold_size', None, 'Part of --validation_size that chooses the '
            'threshold of --target_risk or --target_coverage, and nothing else '
            '(default: half of it where a target is given, else none).', lower_bound=0)
    integer('train_size', None, 'Training images, class by class, of those that are '
            'not held out (default: all).', lower_bound=1)
    integer('split_seed', 0, 'Seed of the division of the training images, the same '
            'for runs of every --seed.', lower_bound=0, upper_bound=2**31 - 1)
    integer('batch_size', 500, 'Batch size outside training.', lower_bound=1)


def _define_model(values):
  _, enum, integer, real, boolean, _, validator = _definers(values)
  with group('model', values):
    enum('method', 'dble', list(choices.METHODS),
         'dble, or a method that it is compared with; all see the same number of '
         'images per step.')
    enum('encoder', 'mlp', choices.ENCODERS,
         "f_theta; thin_resnet is the network of the paper's released code where the "
         'paper names ResNet-50.')
    integer('representation_size', 512, "D: size of the encoder's output.",
            lower_bound=1)
    real('width', 1.0, 'Factor on the number of filters, or hidden units, of every '
         'layer of the encoder but the last.')
    validator('width', lambda width: 0 < width < math.inf,
              'give a finite number above 0')
    enum('confidence_training', 'errors', choices.CONFIDENCE_TRAINING,
         'dble: the queries that the confidence model g_phi learns from, those that '
         'are misclassified or all.')
    integer('num_samples', 20, 'U: samples of the representation per image at '
            'inference, or forward passes of mc_dropout.', lower_bound=1)
    enum('dtype_policy', None, choices.DTYPE_POLICIES,
         'Precision of the encoder (default: float32). Distances, softmax, losses and '
         'metrics are always float32.')
    boolean('synchronized_batch_norm', None,
            'Compute batch-norm statistics over all replicas instead of per replica.')


def _define_training(values):
  _, enum, integer, real, _, strings, validator = _definers(values)
  with group('training', values):
    enum('episode', 'support_query', choices.EPISODES,
         "support_query: the paper's episodes; leave_one_out: each of the K + K_Q "
         'images of a class is a query against the centers of all others.')
    real('squared_scale', 0.0, 'dble, prototypical: the encoder learns from squared '
         'distances times this factor (0: from distances, as in the paper).',
         lower_bound=0)
    validator('squared_scale', math.isfinite, 'give a finite number')
    real('episode_smoothing', 0.0, 'dble, prototypical: share of each target of the '
         'encoder that is spread over all classes of the episode (0: none, as in the '
         'paper).', lower_bound=0)
    validator('episode_smoothing', lambda share: share < 1, 'give a number below 1')
    integer('num_ways', None, 'N: classes per episode (default: all).', lower_bound=2)
    integer('num_shots', 10, 'K: supports per class and episode.', lower_bound=1)
    integer('num_queries', 10, 'K_Q: queries per class and episode.', lower_bound=1)
    integer('episodes_per_step', 1, 'E: episodes per step.', lower_bound=1)
    integer('epochs', 10, 'Epochs; the model is calibrated and validated after each.',
            lower_bound=1)
    integer('steps_per_epoch', 100, 'Steps per epoch.', lower_bound=1)
    real('learning_rate', 0.1, 'Initial learning rate of theta.', lower_bound=0)
    real('confidence_learning_rate', 0.1, 'Initial learning rate of phi.',
         lower_bound=0)
    enum('schedule', 'step', choices.SCHEDULES, 'step: both learning rates are divided '
         'by 10 at --decay_at; cosine: they fall to 0 along half a cosine.')
    strings('decay_at', ['0.5', '0.75'], 'Schedule step: fractions of the training at '
            'which both learning rates are divided by 10.')
    validator('decay_at', _are_increasing_fractions, 'give increasing fractions '
              'between 0 and 1, such as --decay_at=0.5,0.75')
    real('warmup', 0.0, 'Fraction of the training over which both learning rates rise '
         'linearly to those of the schedule.', lower_bound=0)
    validator('warmup', lambda warmup: warmup < 1, 'give a number below 1')
    real('ema', 0.0, 'Momentum of an average of the weights over the steps, such as '
         '0.999, that replaces them for validation and at the end; 0: none.',
         lower_bound=0)
    validator('ema', lambda ema: ema < 1, 'give a number below 1')
    real('weight_decay', 5e-4, 'Weight decay of the kernels of encoder and confidence '
         'model.', lower_bound=0)
    for name in ('learning_rate', 'confidence_learning_rate', 'weight_decay'):
      validator(name, math.isfinite, 'give a finite number')


def _define_calibration(values):
  _, enum, *_ = _definers(values)
  with group('calibration', values):
    enum('scaling', 'fitted', choices.SCALINGS,
         'dble: fit a factor on sigma and a temperature on the validation split, by '
         'NLL; without that split the factor is a constant. none: sigma as learned, as '
         'in the paper.')


def _define_baselines(values):
  _, _, integer, real, _, _, validator = _definers(values)
  with group('baselines', values):
    real('dropout', 0.5, 'mc_dropout: dropout rate of the representation.',
         lower_bound=0, upper_bound=0.99)
    real('label_smoothing', 0.1, 'label_smoothing: share of each target spread over '
         'all classes.', lower_bound=0, upper_bound=1)
    real('mixup_alpha', 0.2, 'mixup: parameter of the Beta distribution of the mixing '
         'coefficients.')
    validator('mixup_alpha', lambda alpha: alpha > 0, 'give a number above 0')
    real('sparse_share', 0.05, 'trust_score: share of each class that is left out, '
         'where its images are sparsest.', lower_bound=0, upper_bound=0.99)
    integer('ensemble_size', 4, 'deep_ensemble: number of networks.', lower_bound=1)


def _are_increasing_fractions(texts: list[str]) -> bool:
  try:
    fractions = [float(text) for text in texts]
  except ValueError:
    return False
  return all(a < b for a, b in zip([0.0, *fractions], [*fractions, 1.0]))


def require_dataset(values: flags.FlagValues) -> None:
  """Makes the command refuse to run without a data set."""
  flags.register_validator(
      'dataset', lambda dataset: dataset is not None,
      'give an experiment, such as --flagfile=digits, or a data set',
      flag_values=values)


def name(values: flags.FlagValues) -> str:
  """The experiment's name."""
  return values.experiment or values.dataset


def resolved(
    values: flags.FlagValues, has_target: bool = False) -> flags.FlagValues:
  """The flags with the defaults that depend on others: what `config` is made of.

  Args:
    values: the flags.
    has_target: whether a threshold is to be chosen.
  """
  if values.threshold_size is not None:
    return values
  return changed(
      values, threshold_size=values.validation_size // 2 if has_target else 0)


def config(values: flags.FlagValues, names: list[str]) -> str:
  """The settings that identify a run, as a flag file.

  Settings of other methods and the place of the data are left out.

  Args:
    values: the run's flags, resolved.
    names: what `define_flags` returned.
  """
  own = {flag for method in choices.METHODS.values() for flag in method.own_flags}
  unused = {*_NOT_SETTINGS, *own} - {*choices.METHODS[values.method].own_flags}
  lines = (values[name].serialize() for name in names if name not in unused)
  return ''.join(f'{line}\n' for line in lines if line)


def parse(arguments: Iterable[str]) -> flags.FlagValues:
  """The flags of an experiment from arguments such as ['--flagfile=cifar10']."""
  values = flags.FlagValues()
  define_flags(values)
  values(['', *flagfiles.expand(arguments)])
  return values


def of_run(config: pathlib.Path, data_dir: str | None = None) -> flags.FlagValues:
  """The flags of a run.

  Args:
    config: its config.flags.
    data_dir: value of --data_dir, which is not part of it.
  """
  try:
    values = parse(config.read_text().splitlines())
  except flags.Error as error:
    from dble_tf.errors import UserError
    raise UserError(
        f'{config} is from another version ({error}): train again with --overwrite, '
        'or use the version that wrote it.') from error
  if data_dir:
    values.data_dir = data_dir
  return values


def changed(values: flags.FlagValues, **settings) -> flags.FlagValues:
  """A copy of the flags with some settings changed."""
  values = copy.deepcopy(values)
  for name, setting in settings.items():
    setattr(values, name, setting)
  return values
