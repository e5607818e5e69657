"""Trains, evaluates and exports a calibrated classifier.

  python -m launch.train --flagfile=launch/digits.flags

A flagfile describes an experiment; flags after it change single settings.
"""

import math
import sys
import time

import keras
from absl import flags

from dble_tf import atomic
from dble_tf import export
from dble_tf.errors import UserError
from dble_tf.model import DBLE
from launch import entry
from launch import experiment
from launch import report
from launch import workdir as workdirs

FLAGS = flags.FLAGS

_SETTINGS = experiment.define_flags(FLAGS)
flags.DEFINE_string(
    'workdir', None, 'Where results go; runs/<experiment> if not given.')
flags.DEFINE_bool(
    'overwrite', False, 'Replace a finished run of other settings, or repeat this '
    'one.')
flags.mark_flag_as_required('dataset')


def main() -> None:
  workdir = workdirs.Workdir(FLAGS.workdir or f'runs/{experiment.name(FLAGS)}')
  workdir.check()
  config = workdirs.config_text(FLAGS, _SETTINGS)
  if workdir.is_finished and not FLAGS.overwrite:
    if not workdir.holds(config):
      raise UserError(
          f'{workdir.path} holds a finished run of other settings (see '
          f'{workdir.config}). Give another --workdir, or --overwrite to replace it.')
    print('This run is finished already; --overwrite repeats it.')
    report.show(workdir)
    return

  keras.utils.set_random_seed(FLAGS.seed)
  dataset = experiment.load_dataset(FLAGS)
  batches = experiment.make_training_data(FLAGS, dataset)
  model = experiment.build_model(FLAGS, dataset)
  workdir.start(config)
  seconds = train(model, dataset, batches, workdir)

  with atomic.replacing(workdir.model) as temporary:
    model.save(temporary)
  export.export(model, workdir.export)
  facts = report.facts(FLAGS)
  images = facts['steps'] * experiment.images_per_step(FLAGS, dataset)
  report.write(
      workdir, model, dataset, FLAGS.batch_size,
      {**facts, 'images': images, 'seconds': seconds})
  report.show(workdir)


def train(model, dataset, batches, workdir) -> float:
  """Fits all of the model; returns the seconds it took."""
  validation = dataset.validation
  centers = {}
  if isinstance(model, DBLE):
    centers['centers_data'] = dataset.train.batches(FLAGS.batch_size)
  start = time.monotonic()
  history = model.fit(
      batches,
      shuffle=False,  # Batches are random as they come.
      epochs=FLAGS.epochs,
      steps_per_epoch=FLAGS.steps_per_epoch,
      validation_data=(
          validation.batches(FLAGS.batch_size) if len(validation) else None),
      callbacks=[
          keras.callbacks.TensorBoard(str(workdir.tensorboard), write_graph=False),
          keras.callbacks.TerminateOnNaN(),
      ],
      verbose=1 if sys.stdout.isatty() else 2,
      **centers)
  if not math.isfinite(history.history['loss'][-1]):
    raise UserError(
        f'Training diverged in epoch {len(history.epoch)}: the loss is '
        f'{history.history["loss"][-1]}. Lower --learning_rate or '
        '--confidence_learning_rate.')
  return time.monotonic() - start


if __name__ == '__main__':
  entry.run(main)
