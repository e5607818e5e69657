"""What `launch.benchmark` measures: each function is one part of its report.

All take the flags of an experiment and random images of its size, and give numbers
ready for JSON: seconds, bytes, and ratios within one run.
"""

import collections
import functools
import json
import math
import os
import subprocess
import sys

import numpy as np
import tensorflow as tf
from absl import flags

from dble_tf import data as datasets
from dble_tf.training import strategies
from dble_tf.data import episodes
from dble_tf import prototypes
from dble_tf.errors import UserError
from launch import experiment
from launch import timing

SAMPLES = (1, 10, 20, 100, 1000)
# What a step costs with one confidence model, however many an experiment has.
ONE_PHI = ('--confidence_candidates=default', '--scaling=none')
# Numbers of classes, and of images a class, that episodes are drawn from.
POPULATIONS = ((10, 10), (100, 10), (1_000, 10), (10_000, 10), (10, 10_000))
# What the cost of a step is measured against, with the flag's other values.
SIZES = {
    'num_ways': (2, 5, 10, 20, 50),
    'num_shots': (1, 5, 10, 20),
    'num_queries': (1, 5, 10, 20),
    'episodes_per_step': (1, 2, 4),
    'representation_size': (64, 256, 512, 1024),
}


def read_flags(flagfile: str) -> flags.FlagValues:
  """The flags of an experiment, with one confidence model."""
  if not os.path.exists(flagfile):
    raise UserError(f'There is no {flagfile} here: run this in the repository.')
  values = flags.FlagValues()
  experiment.define_flags(values)
  values(['', f'--flagfile={flagfile}', *ONE_PHI])
  return values


def training(
    values: flags.FlagValues, dataset: datasets.Dataset, rounds: int) -> dict:
  """A step of DBLE against one of vanilla on the same number of images."""
  steps, models = {}, {}
  for name, settings in (
      ('vanilla', {'method': 'vanilla'}),
      ('support_query', {'method': 'dble', 'episode': 'support_query'}),
      ('leave_one_out', {'method': 'dble', 'episode': 'leave_one_out'})):
    models[name], steps[name] = _step(experiment.changed(values, **settings), dataset)
  # The halves of the step, each as a graph of its own.
  model = models['leave_one_out']
  batch = _batch(experiment.changed(values, method='dble'), dataset)
  labels = prototypes.episode_labels(*batch.shape[1:3], None)
  _, h, distances = model.update_theta(batch, labels)
  theta, phi = (tf.function(update, jit_compile=model.jit_compile)
                for update in (model.update_theta, model.update_phi))
  steps['theta'] = lambda: theta(batch, labels)[0].numpy()
  steps['phi'] = lambda: phi(h, distances, labels).numpy()
  times = timing.interleave(steps, rounds)
  return {
      'images': experiment.images_per_step(values, dataset),
      'seconds': {name: times.median(name) for name in steps},
      'to_vanilla': {name: times.ratio(name, 'vanilla') for name in steps},
  }


def replicas(
    values: flags.FlagValues, dataset: datasets.Dataset, rounds: int) -> dict:
  """A step on one device against the same step shared by all GPUs, or virtual CPUs."""
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
      'images': experiment.images_per_step(values, dataset),
      'seconds': {name: times.median(name) for name in steps},
      'to_one': {name: times.ratio(name, '1') for name in steps},
  }


def input_pipeline(
    values: flags.FlagValues, dataset: datasets.Dataset, rounds: int) -> dict:
  """Images per second of the pipeline alone, and as the data set grows."""
  values = experiment.changed(values, method='dble')
  draws = 40
  streams = {'pipeline': experiment.make_training_data(values, dataset)}
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
  images_drawn = draws * experiment.images_per_step(values, dataset)
  return {
      'images_per_second': images_drawn / times.median('pipeline'),
      'seconds_per_image': {
          name: times.median(name) / (draws * 200)
          for name in streams if name != 'pipeline'},
  }


def inference(
    values: flags.FlagValues, dataset: datasets.Dataset, rounds: int) -> dict:
  """Labels and confidences with U samples against the encoder alone."""
  images = dataset.train.tensors[0][:values.batch_size]
  calls, encoder = {}, None
  for num_samples in SAMPLES:
    model = experiment.build_model(
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


def centers(
    values: flags.FlagValues, dataset: datasets.Dataset, rounds: int) -> dict:
  """Fitting class centers against one pass of the encoder over the same images."""
  model = experiment.build_model(experiment.changed(values, method='dble'), dataset)
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


def startup(flagfile: str, rounds: int) -> dict:
  """Seconds from the start of a process to its first step, part by part."""
  runs = [_first_steps(flagfile) for _ in range(rounds)]
  return {part: float(np.median([run[part] for run in runs]))
          for part in ('import', 'data', 'build', 'trace', 'step')}


def memory(encoder: str) -> dict:
  """Peak bytes of processes that train two steps of CIFAR-10's shape, or predict."""
  peak = lambda *arguments: _first_steps(
      'launch/cifar10.flags', f'--encoder={encoder}', *arguments)['peak_memory']
  return {
      'two steps, 50,000 images of 32x32x3': peak(),
      'two steps, 100,000 images of 64x64x3': peak(
          '--num_images=100000', '--image_size=64'),
      'predicting 1,000 images, U = 1,000': peak(
          '--num_images=5000', '--num_predicted=1000', '--num_samples=1000'),
      'predicting 5,000 images, U = 1,000': peak(
          '--num_images=5000', '--num_predicted=5000', '--num_samples=1000'),
  }


def sizes(
    values: flags.FlagValues, dataset: datasets.Dataset, rounds: int) -> dict:
  """Seconds of a step as one size of it changes and the others stay."""
  values = experiment.changed(values, method='dble', episode='support_query')
  results = {}
  for name, choices in SIZES.items():
    steps = {}
    for choice in choices:
      if name == 'num_ways' and choice > dataset.num_classes:
        continue
      steps[choice] = _step(experiment.changed(values, **{name: choice}), dataset)[1]
    times = timing.interleave(steps, rounds)
    results[name] = {str(choice): times.median(choice) for choice in steps}
  return results


def _batch(values, dataset):
  return next(iter(experiment.make_training_data(values, dataset)))


def _step(values, dataset):
  """A model, and a function that makes one training step of it."""
  model = experiment.build_model(values, dataset)
  batch = _batch(values, dataset)
  step = tf.function(model.train_step, jit_compile=model.jit_compile)
  return model, lambda: step(batch)['loss'].numpy()


def _shared_step(values, dataset, strategy):
  """A function that makes one training step on the replicas of a strategy."""
  with strategy.scope():
    model = experiment.build_model(values, dataset)
  batch = next(iter(strategy.experimental_distribute_dataset(
      experiment.make_training_data(values, dataset))))
  step = tf.function(
      lambda: strategy.run(model.train_step, args=(batch,)),
      jit_compile=model.jit_compile)
  # What one replica logs is of all of them, so its number ends the step.
  return lambda: strategy.experimental_local_results(step()['loss'])[0].numpy()


def _first_steps(flagfile, *arguments):
  process = subprocess.run(
      [sys.executable, '-m', 'launch.first_steps', f'--flagfile={flagfile}',
       *ONE_PHI, *arguments], capture_output=True, text=True)
  if process.returncode:
    raise UserError(
        f'The first steps of {flagfile} {" ".join(arguments)} ended with exit code '
        f'{process.returncode}: {process.stderr[-500:]}')
  return json.loads(process.stdout.splitlines()[-1])
