"""The methods by name: a compiled model and its training data from the flags.

A method's arithmetic is in its own file of the library.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from absl import flags

from dble_tf import baselines
from dble_tf.baselines import deep_ensemble
from dble_tf.baselines import label_smoothing
from dble_tf.baselines import mixup
from dble_tf.classifier import Classifier
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.data import Dataset
from dble_tf.model import DBLE

from . import components


def _plain(values, dataset, cls=baselines.Vanilla, **arguments):
  """A classifier with a linear layer, not compiled."""
  return cls(components.encoder(values, dataset), dataset.num_classes,
             weight_decay=values.weight_decay, **arguments)


def _compiled(values, model, **arguments):
  model.compile(
      components.optimizer(values, values.learning_rate, values.ema), **arguments)
  return model


def _compiled_with_phi(values, model):
  return _compiled(values, model, confidence_optimizer=components.optimizer(
      values, values.confidence_learning_rate))


def vanilla(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, _plain(values, dataset))


def mc_dropout(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, _plain(
      values, dataset, baselines.MCDropout, dropout=values.dropout,
      num_samples=values.num_samples, seed=values.seed))


def temperature_scaling(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, _plain(values, dataset, baselines.TemperatureScaling))


def smoothed(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, _plain(values, dataset),
                   loss=label_smoothing.loss(values.label_smoothing))


def trust_score(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, _plain(
      values, dataset, baselines.TrustScore, num_points=len(dataset.train),
      sparse_share=values.sparse_share))


def ensemble(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, baselines.DeepEnsemble(
      [_plain(values, dataset) for _ in range(values.ensemble_size)]))


def _targets(values):
  """The arguments of DBLE that shape theta's loss."""
  return {'squared_scale': values.squared_scale or None,
          'label_smoothing': values.episode_smoothing}


def prototypical(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  return _compiled(values, DBLE(
      components.encoder(values, dataset), dataset.num_classes,
      num_shots=components.num_shots(values), confidence_model=None,
      **_targets(values)))


def dble(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  # The encoder comes first: its weights must not depend on whether there is a phi.
  encoder = components.encoder(values, dataset)
  confidence_model = ConfidenceModel(
      values.representation_size, learns_from=values.confidence_training,
      weight_decay=values.weight_decay)
  return _compiled_with_phi(values, DBLE(
      encoder, dataset.num_classes, num_shots=components.num_shots(values),
      confidence_model=confidence_model, num_samples=values.num_samples,
      seed=values.seed, scaling=values.scaling, **_targets(values)))


def vanilla_errors(values: flags.FlagValues, dataset: Dataset) -> Classifier:
  plain = _plain(values, dataset)  # First, so that theta starts as vanilla's does.
  model = baselines.VanillaErrors(
      plain.encoder, dataset.num_classes, confidence_model=ConfidenceModel(
          dataset.num_classes, weight_decay=values.weight_decay),
      weight_decay=values.weight_decay, num_samples=values.num_samples,
      seed=values.seed)
  model.take_trained(plain)
  return _compiled_with_phi(values, model)


def shuffled_batches(
    values: flags.FlagValues, dataset: Dataset, start: int, seed: int | None = None
) -> tf.data.Dataset:
  return dataset.training_batches(
      components.images_per_step(values, dataset),
      seed=values.seed if seed is None else seed, start=start)


def mixed_batches(
    values: flags.FlagValues, dataset: Dataset, start: int) -> tf.data.Dataset:
  return mixup.mixup_dataset(
      shuffled_batches(values, dataset, start), dataset.num_classes,
      values.mixup_alpha, values.seed, start)


def ensemble_batches(
    values: flags.FlagValues, dataset: Dataset, start: int) -> tf.data.Dataset:
  size = values.ensemble_size
  return deep_ensemble.member_batches([
      shuffled_batches(values, dataset, start, seed=size * values.seed + member)
      for member in range(size)])


def episodes(
    values: flags.FlagValues, dataset: Dataset, start: int) -> tf.data.Dataset:
  return dataset.episodes(
      values.num_shots, values.num_queries, num_ways=values.num_ways,
      episodes_per_step=values.episodes_per_step, seed=values.seed, start=start)


class Method(NamedTuple):
  """Functions of the flags and the data set.

  Attributes:
    build: -> a compiled model with fresh weights.
    training_data: also of the first step -> an endless stream of what its `fit` takes.
  """

  build: Callable[[flags.FlagValues, Dataset], Classifier]
  training_data: Callable[
      [flags.FlagValues, Dataset, int], tf.data.Dataset] = shuffled_batches


METHODS = {
    'vanilla': Method(vanilla),
    'mc_dropout': Method(mc_dropout),
    'temperature_scaling': Method(temperature_scaling),
    'label_smoothing': Method(smoothed),
    'mixup': Method(vanilla, mixed_batches),
    'trust_score': Method(trust_score),
    'deep_ensemble': Method(ensemble, ensemble_batches),
    'vanilla_errors': Method(vanilla_errors),
    'prototypical': Method(prototypical, episodes),
    'dble': Method(dble, episodes),
}
