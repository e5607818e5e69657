"""The methods by name: how the flags make a model and its training data.

A method's own arithmetic is in its own file of the library; here is only what each is
given.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf
from absl import flags

from dble_tf import baselines
from dble_tf.data import batches
from dble_tf import confidence_models
from dble_tf import data as datasets
from dble_tf.data import episodes
from dble_tf.baselines import deep_ensemble
from dble_tf.baselines import label_smoothing
from dble_tf.baselines import mixup
from dble_tf.classifier import Classifier
from dble_tf.model import DBLE
from dble_tf.prototypical import Prototypical
from launch import candidates


class Settings(NamedTuple):
  """What every method is made from."""

  values: flags.FlagValues
  dataset: datasets.Dataset
  make_encoder: Callable[[], keras.Model]
  make_optimizer: Callable[[float], keras.optimizers.Optimizer]  # Of a rate.
  images_per_step: int

  @property
  def num_shots(self) -> int | None:
    """K, or None for leave-one-out."""
    return (None if self.values.episode == 'leave_one_out'
            else self.values.num_shots)

  def plain(self, cls=baselines.Vanilla, **arguments) -> Classifier:
    """A classifier with a linear layer, not compiled."""
    return cls(self.make_encoder(), num_classes=self.dataset.num_classes,
               weight_decay=self.values.weight_decay, **arguments)

  def compiled(self, model: Classifier, **arguments) -> Classifier:
    model.compile(self.make_optimizer(self.values.learning_rate), **arguments)
    return model

  def compiled_with_phi(self, model: Classifier) -> Classifier:
    return self.compiled(model, confidence_optimizer=self.make_optimizer(
        self.values.confidence_learning_rate))

  @property
  def sampling(self) -> dict:
    """What the methods that learn from errors have in common."""
    return {'num_samples': self.values.num_samples, 'seed': self.values.seed}


def vanilla(settings: Settings) -> Classifier:
  return settings.compiled(settings.plain())


def mc_dropout(settings: Settings) -> Classifier:
  values = settings.values
  return settings.compiled(settings.plain(
      baselines.MCDropout, dropout=values.dropout, num_samples=values.num_samples,
      seed=values.seed))


def temperature_scaling(settings: Settings) -> Classifier:
  return settings.compiled(settings.plain(baselines.TemperatureScaling))


def smoothed(settings: Settings) -> Classifier:
  return settings.compiled(
      settings.plain(), loss=label_smoothing.loss(settings.values.label_smoothing))


def trust_score(settings: Settings) -> Classifier:
  return settings.compiled(settings.plain(
      baselines.TrustScore, num_points=len(settings.dataset.train),
      sparse_share=settings.values.sparse_share))


def ensemble(settings: Settings) -> Classifier:
  return settings.compiled(baselines.DeepEnsemble(
      [settings.plain() for _ in range(settings.values.ensemble_size)]))


def prototypical(settings: Settings) -> Classifier:
  return settings.compiled(Prototypical(
      settings.make_encoder(), settings.dataset.num_classes,
      num_shots=settings.num_shots))


def dble(settings: Settings) -> Classifier:
  values = settings.values
  described = [candidates.parse(text) for text in values.confidence_candidates]
  # The encoder comes first: its weights must not depend on whether there is a phi.
  encoder = settings.make_encoder()
  return settings.compiled_with_phi(DBLE(
      encoder,
      [one.build(values.representation_size, values.weight_decay)
       for one in described],
      settings.dataset.num_classes,
      num_shots=settings.num_shots,
      confidence_training=[one.confidence_training for one in described],
      normalisation=[one.normalisation for one in described],
      scaling=values.scaling,
      **settings.sampling))


def vanilla_errors(settings: Settings) -> Classifier:
  plain = settings.plain()  # First, so that theta starts as vanilla's does.
  num_classes, weight_decay = settings.dataset.num_classes, settings.values.weight_decay
  model = baselines.VanillaErrors(
      plain.encoder,
      confidence_models.confidence_mlp(
          num_classes, weight_decay=weight_decay, normalize_input=False),
      num_classes, weight_decay=weight_decay, **settings.sampling)
  model.take_trained(plain)
  return settings.compiled_with_phi(model)


def shuffled_batches(
    settings: Settings, start: int, seed: int | None = None) -> tf.data.Dataset:
  images, class_ids = settings.dataset.train.tensors
  return batches.batch_dataset(
      images, class_ids, settings.images_per_step,
      settings.values.seed if seed is None else seed, start,
      augmentation_policy=settings.dataset.augmentation_policy)


def mixed_batches(settings: Settings, start: int) -> tf.data.Dataset:
  return mixup.mixup_dataset(
      shuffled_batches(settings, start), settings.dataset.num_classes,
      settings.values.mixup_alpha, settings.values.seed, start)


def ensemble_batches(settings: Settings, start: int) -> tf.data.Dataset:
  size = settings.values.ensemble_size
  return deep_ensemble.member_batches([
      shuffled_batches(settings, start, seed=size * settings.values.seed + member)
      for member in range(size)])


def episode_batches(settings: Settings, start: int) -> tf.data.Dataset:
  values, dataset = settings.values, settings.dataset
  sampler = episodes.EpisodeSampler(
      dataset.train.class_ids, values.num_ways or dataset.num_classes,
      values.num_shots + values.num_queries, values.seed)
  return episodes.episode_dataset(
      dataset.train.tensors[0], sampler, values.episodes_per_step,
      start=start * values.episodes_per_step,
      augmentation_policy=dataset.augmentation_policy)


class Method(NamedTuple):
  """How a method is built and what it is trained on.

  Attributes:
    build: settings -> a compiled model.
    training_data: settings, first step -> an endless stream of what its `fit` takes.
    base: the method that trains the same network, whose finished run can stand in
      for this one's training.
    own_flags: those that are of no consequence to methods which do not name them.
  """

  build: Callable[[Settings], Classifier]
  training_data: Callable[[Settings, int], tf.data.Dataset] = shuffled_batches
  base: str | None = None
  own_flags: tuple[str, ...] = ()


_PHI_FLAGS = ('confidence_learning_rate', 'num_samples')

METHODS = {
    'vanilla': Method(vanilla),
    'mc_dropout': Method(mc_dropout, own_flags=('dropout', 'num_samples')),
    'temperature_scaling': Method(temperature_scaling, base='vanilla'),
    'label_smoothing': Method(smoothed, own_flags=('label_smoothing',)),
    'mixup': Method(vanilla, mixed_batches, own_flags=('mixup_alpha',)),
    'trust_score': Method(trust_score, base='vanilla', own_flags=('sparse_share',)),
    'deep_ensemble': Method(ensemble, ensemble_batches, own_flags=('ensemble_size',)),
    'vanilla_errors': Method(vanilla_errors, own_flags=_PHI_FLAGS),
    'prototypical': Method(prototypical, episode_batches, own_flags=('episode',)),
    'dble': Method(
        dble, episode_batches,
        own_flags=('episode', 'confidence_candidates', 'scaling', *_PHI_FLAGS)),
}
