"""The flags of an experiment, and the data, batches and model they describe."""

import functools
import math

import keras
import tensorflow as tf
from absl import flags

from dble_tf import baselines
from dble_tf import batches
from dble_tf import confidence
from dble_tf import datasets
from dble_tf import encoders
from dble_tf import episodes
from dble_tf.classifier import Classifier
from dble_tf.model import DBLE

# Flags defined here belong, in --help, to the entry point that asks for them.
flags.disclaim_key_flags()

_MOMENTUM = 0.9
_GRADIENT_NORM = 1.0


def define_flags(values: flags.FlagValues) -> list[str]:
  """Defines what determines a run's outcome, and returns the flags' names."""
  string, enum, integer, real, strings, validator = (
      functools.partial(define, flag_values=values)
      for define in (flags.DEFINE_string, flags.DEFINE_enum, flags.DEFINE_integer,
                     flags.DEFINE_float, flags.DEFINE_list, flags.register_validator))
  before = set(values)

  string('experiment', None, 'Name of the run; the data set where none is given.')
  enum('dataset', None, list(datasets.AUGMENTATION_POLICIES), 'Data set.')
  string('data_dir', None, "Where TFDS keeps its data; TFDS' default if not given.")
  integer('validation_size', 0, 'Training images held out, class by class, for '
          'validation.', lower_bound=0)

  enum('method', 'dble', ['dble', 'vanilla'], 'dble, or plain softmax training '
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
  real('weight_decay', 5e-4, 'Of the kernels of encoder and confidence model.',
       lower_bound=0)
  integer('num_samples', 20, 'U: representations sampled per image at inference.',
          lower_bound=1)

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


def name(values: flags.FlagValues) -> str:
  return values.experiment or values.dataset


def load_dataset(values: flags.FlagValues) -> datasets.Dataset:
  return datasets.load(
      values.dataset, values.data_dir, values.validation_size, values.seed)


def images_per_step(values: flags.FlagValues, dataset: datasets.Dataset) -> int:
  """How many images an update encodes, whatever the method."""
  return (values.episodes_per_step * (values.num_ways or dataset.num_classes)
          * (values.num_shots + values.num_queries))


def make_training_data(
    values: flags.FlagValues, dataset: datasets.Dataset) -> tf.data.Dataset:
  """An endless stream of what the method's `fit` takes."""
  images, class_ids = dataset.train.tensors
  policy = dataset.augmentation_policy
  if values.method == 'vanilla':
    return batches.batch_dataset(
        images, class_ids, images_per_step(values, dataset), values.seed,
        augmentation_policy=policy)
  sampler = episodes.EpisodeSampler(
      dataset.train.class_ids, values.num_ways or dataset.num_classes,
      values.num_shots + values.num_queries, values.seed)
  return episodes.episode_dataset(
      images, sampler, values.episodes_per_step, augmentation_policy=policy)


def build_model(values: flags.FlagValues, dataset: datasets.Dataset) -> Classifier:
  """A compiled model with fresh weights."""
  encoder = encoders.ENCODERS[values.encoder](
      dataset.image_shape, values.representation_size, values.weight_decay)
  if values.method == 'vanilla':
    model = baselines.Vanilla(
        encoder, dataset.num_classes, weight_decay=values.weight_decay)
    model.compile(_optimizer(values.learning_rate, values))
    return model
  model = DBLE(
      encoder,
      confidence.confidence_mlp(
          values.representation_size, weight_decay=values.weight_decay),
      dataset.num_classes,
      num_shots=None if values.episode == 'leave_one_out' else values.num_shots,
      num_samples=values.num_samples,
      seed=values.seed)
  model.compile(
      _optimizer(values.learning_rate, values),
      _optimizer(values.confidence_learning_rate, values))
  return model


def _optimizer(initial_rate, values):
  """SGD with momentum and a step decay, gradients clipped variable by variable."""
  steps = values.epochs * values.steps_per_epoch
  boundaries = [round(float(at) * steps) for at in values.decay_at]
  rates = [initial_rate * 0.1**i for i in range(len(boundaries) + 1)]
  rate = keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
  return keras.optimizers.SGD(
      rate if boundaries else initial_rate, momentum=_MOMENTUM,
      clipnorm=_GRADIENT_NORM)
