"""The flags of an experiment, and the data, batches and model they describe."""

import contextlib
import copy
import functools
import math

import keras
import tensorflow as tf
from absl import flags
from etils import epath

from dble_tf import data as datasets
from dble_tf import encoders
from dble_tf.classifier import Classifier
from dble_tf.scaling import SCALINGS
from launch import candidates
from launch import methods

# Flags defined here belong, in --help, to the entry point that asks for them.
flags.disclaim_key_flags()

_MOMENTUM = 0.9
_GRADIENT_NORM = 1.0
_DTYPE_POLICIES = ('float32', 'mixed_bfloat16', 'mixed_float16')


def define_flags(values: flags.FlagValues) -> list[str]:
  """Defines what determines a run's outcome, and returns the flags' names."""
  string, enum, integer, real, boolean, strings, validator = (
      functools.partial(define, flag_values=values)
      for define in (flags.DEFINE_string, flags.DEFINE_enum, flags.DEFINE_integer,
                     flags.DEFINE_float, flags.DEFINE_bool, flags.DEFINE_list,
                     flags.register_validator))
  before = set(values)

  string('experiment', None, 'Name of the run; the data set where none is given.')
  enum('dataset', None, list(datasets.AUGMENTATION_POLICIES), 'Data set.')
  string('data_dir', None, "Where TFDS keeps its data; TFDS' default if not given.")
  integer('validation_size', 0, 'Training images held out, class by class, for '
          'validation.', lower_bound=0)

  enum('method', 'dble', list(methods.METHODS), 'dble, or what it is compared with, '
       'on as many images an update.')
  enum('episode', 'support_query', ['support_query', 'leave_one_out'],
       "The paper's episodes, or those in which each of the K + K_Q images of a class "
       'is a query against the centers of all others.')
  integer('num_ways', None, 'N: classes an episode; all if not given.', lower_bound=2)
  integer('num_shots', 10, 'K: supports a class and episode.', lower_bound=1)
  integer('num_queries', 10, 'K_Q: queries a class and episode.', lower_bound=1)
  integer('episodes_per_step', 1, 'E: episodes an update.', lower_bound=1)

  enum('encoder', 'mlp', list(encoders.ENCODERS), 'f_theta.')
  integer('representation_size', 512, "D: the encoder's outputs.", lower_bound=1)
  boolean('synchronized_batch_norm', None, 'Replicas normalise by the statistics of the '
          'whole batch, not each by those of its part.')
  enum('dtype_policy', None, _DTYPE_POLICIES, 'Precision of the encoder; float32 if not '
       'given. Distances, softmax, losses and metrics are float32 with each.')
  real('weight_decay', 5e-4, 'Of the kernels of encoder and confidence model.',
       lower_bound=0)
  integer('num_samples', 20, 'U: representations sampled per image at inference, or '
          'passes of mc_dropout.', lower_bound=1)
  strings('confidence_candidates', [candidates.DEFAULT], f'dble: {candidates.HELP}')
  validator('confidence_candidates', _are_candidates)
  enum('scaling', 'sigma_scale', SCALINGS, 'dble: what is fitted on the validation '
       'split, a factor on sigma alone, by NLL, or with a temperature, by whether labels '
       'are right; none: sigma as the paper has it.')

  real('dropout', 0.5, 'mc_dropout: the share of the representation that a pass drops.',
       lower_bound=0, upper_bound=0.99)
  real('label_smoothing', 0.1, 'label_smoothing: the share of a target that is spread '
       'over all classes.', lower_bound=0, upper_bound=1)
  real('mixup_alpha', 0.2, 'mixup: of the Beta distribution of shares.')
  validator('mixup_alpha', lambda alpha: alpha > 0, 'give a number above 0')
  real('sparse_share', 0.05, 'trust_score: the share of each class, its images in the '
       'sparsest places, that is left out.', lower_bound=0, upper_bound=0.99)
  integer('ensemble_size', 4, 'deep_ensemble: networks.', lower_bound=1)

  integer('epochs', 10, 'Validations, at each of which class centers are fitted.',
          lower_bound=1)
  integer('steps_per_epoch', 100, 'Updates an epoch.', lower_bound=1)
  real('learning_rate', 0.1, "Theta's initial rate.", lower_bound=0)
  real('confidence_learning_rate', 0.1, "Phi's initial rate.", lower_bound=0)
  strings('decay_at', ['0.5', '0.75'], 'Fractions of the whole training at which '
          'both rates are divided by 10.')
  validator('decay_at', _are_rising_fractions, 'give rising fractions between 0 and '
            '1, such as --decay_at=0.5,0.75')
  for name in ('learning_rate', 'confidence_learning_rate', 'weight_decay'):
    validator(name, math.isfinite, 'give a finite number')
  integer('batch_size', 500, 'Images at a time outside training.', lower_bound=1)
  integer('seed', 0, 'Of weights, episodes, noise and the validation split.',
          lower_bound=0, upper_bound=2**31 - 1)
  return sorted(set(values) - before)


def _are_rising_fractions(texts: list[str]) -> bool:
  try:
    fractions = [float(text) for text in texts]
  except ValueError:
    return False
  return all(a < b for a, b in zip([0.0, *fractions], [*fractions, 1.0]))


def _are_candidates(descriptions: list[str]) -> bool:
  problem = candidates.problem(descriptions)
  if problem:
    raise flags.ValidationError(problem)
  return True


def name(values: flags.FlagValues) -> str:
  return values.experiment or values.dataset


def config(values: flags.FlagValues, names: list[str]) -> str:
  """The settings of a run as a flagfile, without those of other methods.

  Args:
    values: the run's flags.
    names: all that `define_flags` gave.
  """
  own = {flag for method in methods.METHODS.values() for flag in method.own_flags}
  own -= set(methods.METHODS[values.method].own_flags)
  lines = (values[name].serialize() for name in names if name not in own)
  return ''.join(f'{line}\n' for line in lines if line)


def of_run(config: epath.Path, data_dir: str | None = None) -> flags.FlagValues:
  """The flags of a run from its config.flags; its data may have moved."""
  values = flags.FlagValues()
  define_flags(values)
  values(['', *config.read_text().splitlines()])
  if data_dir:
    values.data_dir = data_dir
  return values


def changed(values: flags.FlagValues, **settings) -> flags.FlagValues:
  """The same flags with some settings changed."""
  values = copy.deepcopy(values)
  for name, setting in settings.items():
    setattr(values, name, setting)
  return values


def load_dataset(values: flags.FlagValues) -> datasets.Dataset:
  return datasets.load(
      values.dataset, values.data_dir, values.validation_size, values.seed)


def images_per_step(values: flags.FlagValues, dataset: datasets.Dataset) -> int:
  """How many images an update encodes, whatever the method."""
  return (values.episodes_per_step * (values.num_ways or dataset.num_classes)
          * (values.num_shots + values.num_queries))


def make_training_data(
    values: flags.FlagValues, dataset: datasets.Dataset, start: int = 0
) -> tf.data.Dataset:
  """An endless stream of what the method's `fit` takes, from step `start` on."""
  return methods.METHODS[values.method].training_data(
      _settings(values, dataset), start)


def build_model(values: flags.FlagValues, dataset: datasets.Dataset) -> Classifier:
  """A compiled model with fresh weights."""
  with _dtype_policy(values.dtype_policy):
    return methods.METHODS[values.method].build(_settings(values, dataset))


@contextlib.contextmanager
def _dtype_policy(name):
  """Layers made in this context have the policy, if one is given."""
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(name or before)
  try:
    yield
  finally:
    keras.config.set_dtype_policy(before)


def _settings(values, dataset):
  return methods.Settings(
      values, dataset,
      make_encoder=lambda: _encoder(values, dataset),
      make_optimizer=lambda rate: _optimizer(rate, values),
      images_per_step=images_per_step(values, dataset))


def _encoder(values, dataset):
  encoder = encoders.ENCODERS[values.encoder](
      dataset.image_shape, values.representation_size, values.weight_decay)
  if values.synchronized_batch_norm:
    encoders.synchronize_batch_norm(encoder)
  return encoder


def _optimizer(initial_rate, values):
  """SGD with momentum and a step decay, gradients clipped variable by variable."""
  steps = values.epochs * values.steps_per_epoch
  boundaries = [round(float(at) * steps) for at in values.decay_at]
  rates = [initial_rate * 0.1**i for i in range(len(boundaries) + 1)]
  rate = keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
  return keras.optimizers.SGD(
      rate if boundaries else initial_rate, momentum=_MOMENTUM,
      clipnorm=_GRADIENT_NORM)
