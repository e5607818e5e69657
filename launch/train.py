"""Trains, evaluates and exports a calibrated classifier.

  python -m launch.train --flagfile=launch/digits.flags

A flagfile describes an experiment; flags after it change single settings. The same
command again continues a run that was killed from its last checkpoint.
"""

import sys
import time

import keras
import tensorflow as tf
from absl import flags

from dble_tf.serving import thresholds
from dble_tf import files
from dble_tf.training import checkpoints
from dble_tf import data as datasets
from dble_tf.training import strategies
from dble_tf.classifier import Classifier
from dble_tf.classifier import require_equal_parts
from dble_tf.errors import UserError
from launch import devices
from launch import entry
from launch import experiment
from launch import exporting
from launch import methods
from launch import report
from launch import training
from launch import workdir as workdirs

FLAGS = flags.FLAGS

_SETTINGS = experiment.define_flags(FLAGS)
devices.define_flags(FLAGS)
exporting.define_flags(FLAGS)
training.define_flags(FLAGS)
flags.DEFINE_string(
    'workdir', None, 'Where results go; runs/<experiment> if not given.')
flags.DEFINE_bool(
    'overwrite', False, 'Replace a run of other settings, or repeat a finished one.')
flags.DEFINE_bool(
    'deterministic', False, 'Use operations alone that give the same bits every time.')
flags.DEFINE_string(
    'trained_run', None, 'Directory of a finished vanilla run of the same settings, whose '
    'network temperature_scaling and trust_score take instead of training one.')
flags.mark_flag_as_required('dataset')


def main() -> None:
  if FLAGS.deterministic:
    tf.config.experimental.enable_op_determinism()
  workdir = workdirs.Workdir(FLAGS.workdir or f'runs/{experiment.name(FLAGS)}')
  workdir.check()
  config = experiment.config(FLAGS, _SETTINGS)
  if is_finished(workdir, config):
    if workdir.checkpoints.exists():  # It was killed just behind its end.
      files.remove(workdir.checkpoints)
    print('This run is finished already; --overwrite repeats it, and python -m '
          'launch.export exports it with another target.')
    report.show(workdir)
    return

  trained_run = check_trained_run()
  strategy = devices.make_strategy(FLAGS)
  jit_compile = strategies.jit_compile(FLAGS.jit_compile, strategy)
  keras.utils.set_random_seed(FLAGS.seed)
  dataset = experiment.load_dataset(FLAGS)
  target = exporting.target(FLAGS, dataset)
  with strategy.scope():
    model = experiment.build_model(FLAGS, dataset)
  if jit_compile != 'auto':
    model.jit_compile = jit_compile
  if model.needs_held_out and not len(dataset.validation):
    raise UserError(
        f'{FLAGS.method} is fitted on images that the encoder was not trained on: hold '
        'some out with --validation_size'
        + (', or have one confidence model that learns from errors or all, and '
           '--scaling=none.' if FLAGS.method == 'dble' else '.'))
  if not trained_run:  # Refuses what it cannot be made of.
    require_equal_parts(
        experiment.make_training_data(FLAGS, dataset), strategy.num_replicas_in_sync)
  with workdir.lock():
    if not is_finished(workdir, config):  # By another process, since the first look.
      store = checkpoints.Checkpoints(workdir.checkpoints, config)
      newest = begin(workdir, config, store)
      run(model, dataset, trained_run, target, workdir, store, newest)
      store.remove()
  report.show(workdir)


def is_finished(workdir: workdirs.Workdir, config: str) -> bool:
  """Whether there is nothing to do; refuses the directory of another run."""
  if FLAGS.overwrite:
    return False
  workdir.require(config, 'or --overwrite to replace it')
  return workdir.is_finished


def begin(
    workdir: workdirs.Workdir, config: str, store: checkpoints.Checkpoints
) -> checkpoints.Checkpoint | None:
  """Where an unfinished run of these settings is, or None behind a new beginning."""
  newest = None
  if workdir.holds(config) and not workdir.is_finished:
    newest = store.newest()
  if newest is None:
    workdir.start(config)
  else:
    workdir.remove_incomplete()
  return newest


def run(
    model: Classifier,
    dataset: datasets.Dataset,
    trained_run: workdirs.Workdir | None,
    target: thresholds.Target,
    workdir: workdirs.Workdir,
    store: checkpoints.Checkpoints,
    newest: checkpoints.Checkpoint | None,
) -> None:
  """Trains, or takes a trained network, completes, saves, exports and evaluates."""
  start = time.monotonic()
  if trained_run:
    start -= trained_run.read_metrics()['seconds']
    model.take_trained(trained_run.load_model())
  else:
    start -= newest.position.seconds if newest else 0.0
    training.train(FLAGS, model, dataset, workdir, store, newest)
  complete(model, dataset)
  seconds = time.monotonic() - start

  with files.replacing(workdir.model) as temporary:
    model.save(temporary)
  exporting.write(workdir, model, dataset, FLAGS, target)
  facts = report.facts(FLAGS)
  images = facts['steps'] * experiment.images_per_step(FLAGS, dataset)
  report.write(
      workdir, model, dataset, FLAGS.batch_size,
      {**facts, 'images': images, 'seconds': seconds,
       'replicas': model.distribute_strategy.num_replicas_in_sync})


def check_trained_run() -> workdirs.Workdir | None:
  """The run of --trained_run, if one is given; refuses one that does not fit."""
  if FLAGS.trained_run is None:
    return None
  base = methods.METHODS[FLAGS.method].base
  if base is None:
    raise UserError(f'{FLAGS.method} has to be trained: leave --trained_run out.')
  run = workdirs.Workdir(FLAGS.trained_run)
  expected = experiment.config(experiment.changed(FLAGS, method=base), _SETTINGS)
  if not (run.is_finished and run.holds(expected)
          and 'seconds' in run.read_metrics()):
    raise UserError(
        f'{run.path} holds no finished run of --method={base} with otherwise the same '
        'settings: train one there, or leave --trained_run out.')
  return run


def complete(model: Classifier, dataset: datasets.Dataset) -> None:
  """Fits what is left to fit after training."""
  train, validation = (
      split.batches(FLAGS.batch_size) if len(split) else None
      for split in (dataset.train, dataset.validation))
  model.complete(train, validation, verbose=int(sys.stdout.isatty()))


if __name__ == '__main__':
  entry.run(main)
