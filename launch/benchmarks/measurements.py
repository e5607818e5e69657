"""The parts of a benchmark, one function each.

Most take the flags of an experiment, random images of its size and the number of
rounds. All return numbers ready for JSON: seconds, bytes, and ratios of times that were
taken in turns.
"""

import collections
import functools
import json
import math
import subprocess

import numpy as np
import tensorflow as tf
from absl import flags

from dble_tf.data import Dataset
from dble_tf.data import episodes
from dble_tf.errors import UserError
from dble_tf.training import strategies

from ..cli import invocation
from ..runs import build
from ..runs import components
from ..settings import experiment
from . import timing

SAMPLES = (1, 10, 20, 100, 1000)
# Calibration on random images would disable sigma, and its cost would not be measured.
_KEEP_SIGMA = '--scaling=none'
# Numbers of classes, and of images per class, that episodes are drawn from.
POPULATIONS = ((10, 10), (100, 10), (1_000, 10), (10_000, 10), (10, 10_000))
# The flags that the cost of a step is measured against, and their values.
SIZES = {
    'num_ways': (2, 5, 10, 20, 50),
    'num_shots': (1, 5, 10, 20),
    'num_queries': (1, 5, 10, 20),
    'episodes_per_step': (1, 2, 4),
    'representation_size': (64, 256, 512, 1024),
}


def read_flags(name: str) -> flags.FlagValues:
  """The flags of an experiment, by its name, with sigma as it is learned."""
  return experiment.parse([f'--flagfile={name}', _KEEP_SIGMA])


def training(values: flags.FlagValues, dataset: Dataset, rounds: int) -> dict:
  """Times a step of DBLE and one of vanilla training on the same number of images.

  Returns:
    images: per step.
    seconds: of a step of vanilla, of the prototypical classifier, which is DBLE without
      a confidence model, and of DBLE with both kinds of episode.
    to_vanilla: the same in units of a vanilla step.
    to_prototypical: a leave-one-out step of DBLE in units of one without a confidence
      model. A ratio within rounds: a difference of medians would be mostly noise.
  """
  settings = {
      'vanilla': {'method': 'vanilla'},
      'prototypical': {'method': 'prototypical', 'episode': 'leave_one_out'},
      'support_query': {'method': 'dble', 'episode': 'support_query'},
      'leave_one_out': {'method': 'dble', 'episode': 'leave_one_out'}}
  steps = {name: _step(experiment.changed(values, **changes), dataset)
           for name, changes in settings.items()}
  times = timing.interleave(steps, rounds)
  return {
      'images': components.images_per_step(values, dataset),
      'seconds': {name: times.median(name) for name in steps},
      'to_vanilla': {name: times.ratio(name, 'vanilla') for name in steps},
      'to_prototypical': times.ratio('leave_one_out', 'prototypical'),
  }


def replicas(values: flags.FlagValues, dataset: Dataset, rounds: int) -> dict:
  """Times a step on one device and the same step on all GPUs, or virtual CPUs."""
  several = strategies.make_strategy('mirrored')
  count = several.num_replicas_in_sync
  values = experiment.changed(
      values, method='dble',
      episodes_per_step=count * math.ceil(values.episodes_per_step / count))
  steps = {
      '1': _shared_step(values, dataset, tf.distribute.get_strategy()),
      str(count): _shared_step(values, dataset, several)}
  times = timing.interleave(steps, rounds)
  return {
      'images': components.images_per_step(values, dataset),
      'seconds': {name: times.median(name) for name in steps},
      'to_one': {name: times.ratio(name, '1') for name in steps},
  }


def input_pipeline(values: flags.FlagValues, dataset: Dataset, rounds: int) -> dict:
  """Times the pipeline of episodes alone, also on data sets of several sizes."""
  values = experiment.changed(values, method='dble')
  draws = 40
  streams = {'pipeline': build.make_training_data(values, dataset)}
  for num_classes, size in POPULATIONS:
    # Two episodes of ten classes and ten images each, whatever the data set.
    class_ids = np.arange(size * num_classes) % num_classes
    images = tf.gather(
        dataset.train.tensors[0], np.arange(len(class_ids)) % len(dataset.train))
    streams[f'{num_classes:,} classes of {size:,} images'] = episodes.episode_dataset(
        images, episodes.EpisodeSampler(class_ids, 10, 10, seed=0), 2,
        augmentation_policy=dataset.augmentation_policy)
  # Each draw begins anew, so that no stream works ahead while another is timed.
  times = timing.interleave(
      {name: functools.partial(collections.deque, stream.take(draws), maxlen=0)
       for name, stream in streams.items()}, rounds)
  images_drawn = draws * components.images_per_step(values, dataset)
  return {
      'images_per_second': images_drawn / times.median('pipeline'),
      'seconds_per_image': {
          name: times.median(name) / (draws * 200)
          for name in streams if name != 'pipeline'},
  }


def inference(values: flags.FlagValues, dataset: Dataset, rounds: int) -> dict:
  """Times inference on a batch with U samples, and the encoder alone."""
  images = dataset.train.tensors[0][:values.batch_size]
  calls, encoder = {}, None
  for num_samples in SAMPLES:
    model = build.build_model(
        experiment.changed(values, method='dble', num_samples=num_samples), dataset)
    model.encoder = encoder = encoder or model.encoder
    answer = tf.function(model.call, jit_compile=model.jit_compile)
    calls[str(num_samples)] = lambda answer=answer: answer(images)['label'].numpy()
  encode = tf.function(
      lambda x: encoder(x, training=False), jit_compile=model.jit_compile)
  calls['encoder'] = lambda: encode(images).numpy()
  times = timing.interleave(calls, rounds)
  return {
      'images': len(images),
      'seconds': {name: times.median(name) for name in calls},
      'to_encoder': {name: times.ratio(name, 'encoder') for name in calls},
  }


def centers(values: flags.FlagValues, dataset: Dataset, rounds: int) -> dict:
  """Times the fit of class centers, and the encoder on the same images."""
  model = build.build_model(experiment.changed(values, method='dble'), dataset)
  batches = dataset.train.batches(values.batch_size).take(4)
  encode = tf.function(lambda x: model.encoder(x, training=False))
  times = timing.interleave({
      'centers': lambda: model.fit_centers(batches),
      'encoder': lambda: [encode(images).numpy() for images, _ in batches]}, rounds)
  return {
      'images': min(len(dataset.train), 4 * values.batch_size),
      'seconds': {name: times.median(name) for name in ('centers', 'encoder')},
      'to_encoder': times.ratio('centers', 'encoder'),
  }


def startup(name: str, rounds: int) -> dict:
  """Times the phases of a process up to its first step, for an experiment by name."""
  runs = [_first_steps(name) for _ in range(rounds)]
  return {part: float(np.median([run[part] for run in runs]))
          for part in ('import', 'data', 'build', 'trace', 'step')}


def memory(encoder: str) -> dict:
  """Peak bytes of processes that train two steps, as on CIFAR-10, or predict."""
  peak = lambda *arguments: _first_steps(
      'cifar10', f'--encoder={encoder}', *arguments)['peak_memory']
  return {
      'two steps, 50,000 images of 32x32x3': peak(),
      'two steps, 100,000 images of 64x64x3': peak(
          '--num_images=100000', '--image_size=64'),
      'predicting 1,000 images, U = 1,000': peak(
          '--num_images=5000', '--num_predicted=1000', '--num_samples=1000'),
      'predicting 5,000 images, U = 1,000': peak(
          '--num_images=5000', '--num_predicted=5000', '--num_samples=1000'),
  }


def sizes(values: flags.FlagValues, dataset: Dataset, rounds: int) -> dict:
  """Times a step of DBLE as one of its sizes changes and the others stay."""
  values = experiment.changed(values, method='dble', episode='support_query')
  results = {}
  for name, choices in SIZES.items():
    steps = {}
    for choice in choices:
      if name == 'num_ways' and choice > dataset.num_classes:
        continue
      steps[choice] = _step(experiment.changed(values, **{name: choice}), dataset)
    times = timing.interleave(steps, rounds)
    results[name] = {str(choice): times.median(choice) for choice in steps}
  return results


def _step(values, dataset):
  """A function that takes one training step of a new model."""
  model = build.build_model(values, dataset)
  batch = next(iter(build.make_training_data(values, dataset)))
  step = tf.function(model.train_step, jit_compile=model.jit_compile)
  return lambda: step(batch)['loss'].numpy()


def _shared_step(values, dataset, strategy):
  """A function that takes one training step on the replicas of a strategy."""
  with strategy.scope():
    model = build.build_model(values, dataset)
  batch = next(iter(strategy.experimental_distribute_dataset(
      build.make_training_data(values, dataset))))
  step = tf.function(
      lambda: strategy.run(model.train_step, args=(batch,)),
      jit_compile=model.jit_compile)
  # A replica logs the mean over all of them, so its number ends the step.
  return lambda: strategy.experimental_local_results(step()['loss'])[0].numpy()


def _first_steps(name, *arguments):
  process = subprocess.run(
      [*invocation.process('benchmarks.first_steps'), f'--flagfile={name}', _KEEP_SIGMA,
       *arguments], capture_output=True, text=True)
  if process.returncode:
    raise UserError(
        f'The first steps of {" ".join([name, *arguments])} failed with exit code '
        f'{process.returncode}: {process.stderr[-500:]}')
  return json.loads(process.stdout.splitlines()[-1])
