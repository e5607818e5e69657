"""A training that can be continued: `fit`, in parts where it was interrupted."""

import functools
import re
import sys

import keras
from absl import flags

from dble_tf.training import callbacks
from dble_tf.training import checkpoints
from dble_tf import data as datasets
from dble_tf.classifier import Classifier
from dble_tf.errors import UserError
from dble_tf.learning_from_errors import LearningFromErrors
from dble_tf.prototypical import Prototypical
from launch import experiment
from launch import preemption
from launch.workdir import Workdir

flags.disclaim_key_flags()

_EVERY = re.compile(r'(?P<steps>[1-9]\d*)steps|(?P<minutes>\d+(\.\d+)?)min')


def define_flags(values: flags.FlagValues) -> None:
  """Defines what a run's outcome does not depend on."""
  flags.DEFINE_list(
      'checkpoint_every', ['10min'], 'How often to save all that training depends on, '
      'besides after each epoch, such as 10min, 500steps or 10min,500steps.',
      flag_values=values)
  flags.register_validator(
      'checkpoint_every', _are_intervals,
      'give minutes, steps or both, such as --checkpoint_every=10min,500steps',
      flag_values=values)
  flags.DEFINE_list(
      'profile_steps', [], 'First and last step to profile for TensorBoard, such as '
      '10,20, counted from where this process begins.', flag_values=values)
  flags.register_validator(
      'profile_steps', _are_steps, 'give the first and the last step, such as '
      '--profile_steps=10,20', flag_values=values)


def _are_intervals(texts):
  return all(map(_EVERY.fullmatch, texts)) and every(texts).seconds != 0


def _are_steps(texts):
  return not texts or (
      len(texts) == 2 and all(text.isdecimal() for text in texts)
      and 0 < int(texts[0]) <= int(texts[1]))


def every(texts: list[str]) -> callbacks.Every:
  """What --checkpoint_every says."""
  numbers = {}
  for text in texts:
    numbers.update({unit: number for unit, number in
                    _EVERY.fullmatch(text).groupdict().items() if number})
  return callbacks.Every(
      int(numbers['steps']) if 'steps' in numbers else None,
      60.0 * float(numbers['minutes']) if 'minutes' in numbers else None)


def train(
    values: flags.FlagValues,
    model: Classifier,
    dataset: datasets.Dataset,
    workdir: Workdir,
    store: checkpoints.Checkpoints,
    newest: checkpoints.Checkpoint | None,
) -> None:
  """Runs `fit` from the newest checkpoint to its end.

  Args:
    values: the run's flags.
    model: as it was built.
    dataset: what it is trained and validated on.
    workdir: where curves go.
    store: where checkpoints go.
    newest: of them, if there is one.
  """
  if newest is not None:
    newest.restore(model)
    print(_welcome(newest.position, values.epochs), flush=True)
  saving = callbacks.Saving(
      store, values.steps_per_epoch, every(values.checkpoint_every), newest)
  fit = functools.partial(_fit, values, model, dataset, workdir, saving)
  try:
    if saving.position.step:
      fit(saving.position.epoch + 1)
    if saving.position.epoch < values.epochs:
      fit(values.epochs)
  except preemption.Preempted:
    saving.save()
    raise
  except callbacks.Diverged as error:
    kept = [path.name for path in store.paths()]
    raise UserError(
        f'{error} Lower --learning_rate or --confidence_learning_rate, with '
        '--overwrite or another --workdir.'
        + (f' The last good checkpoint is kept: {store.directory / kept[-1]}'
           if kept else '')) from error


def _welcome(position, epochs):
  if position.epoch == epochs:
    return 'Training is done already, its end is not: continuing behind it.'
  return (f'Continuing behind step {position.steps_done:,}: epoch {position.epoch + 1} '
          f'of {epochs}, step {position.step} of {position.steps_per_epoch}.')


def _fit(values, model, dataset, workdir, saving, last_epoch):
  """Runs up to an epoch from where training is, which may be in an epoch's middle."""
  position, validation = saving.position, dataset.validation
  has_sigma = len(validation) and isinstance(model, LearningFromErrors)
  arguments = {
      'verbose': 1 if sys.stdout.isatty() else 2,
      'callbacks': [
          callbacks.StopOnDivergence(),
          callbacks.TimeLeft(values.epochs, values.steps_per_epoch),
          callbacks.Curves(
              workdir.tensorboard, position.epoch,
              validation.images[:values.batch_size] if has_sigma else None,
              tuple(map(int, values.profile_steps)) or 0),
          saving,  # Behind the curves of what it saves.
          preemption.WholeSteps(),
      ],
      'validation_data': (
          validation.batches(values.batch_size) if len(validation) else None),
  }
  if len(validation) and isinstance(model, Prototypical):
    arguments['centers_data'] = dataset.train.batches(values.batch_size)
  steps = position.steps_per_epoch - position.step
  if steps == 0:
    _validate(model, position, last_epoch, **arguments)
    return
  model.fit(
      experiment.make_training_data(values, dataset, position.steps_done),
      shuffle=False,  # Batches are random as they come.
      initial_epoch=position.epoch,
      epochs=last_epoch,
      steps_per_epoch=steps,
      **arguments)


def _validate(
    model, position, last_epoch, *, callbacks, validation_data, verbose,
    centers_data=None):
  """What `fit` does behind the last step of an epoch."""
  listeners = keras.callbacks.CallbackList(
      callbacks, add_progbar=True, model=model, verbose=verbose, epochs=last_epoch,
      steps=position.steps_per_epoch)
  listeners.on_train_begin()
  listeners.on_epoch_begin(position.epoch)
  logs = dict(position.logs)
  if centers_data is not None:
    model.fit_centers(centers_data)
  if validation_data is not None:
    figures = model.evaluate(validation_data, verbose=0, return_dict=True)
    logs.update({f'val_{name}': value for name, value in figures.items()})
  listeners.on_epoch_end(position.epoch, logs)
  listeners.on_train_end(logs)
