"""A training that can be continued: `fit`, in parts where it was interrupted."""

import functools
import sys

import keras
from absl import flags

from dble_tf.classifier import Classifier
from dble_tf.data import Dataset
from dble_tf.errors import UserError
from dble_tf.training import callbacks
from dble_tf.training import checkpoints
from dble_tf.training import history

from ..cli import preemption
from ..settings import checkpointing
from . import build
from .time_left import TimeLeft
from .workdir import Workdir


class WholeSteps(keras.callbacks.Callback):
  """Holds SIGTERM back while weights change; the last of a list of callbacks."""

  def on_train_batch_begin(self, batch, logs=None):
    preemption.PREEMPTION.hold()

  def on_train_batch_end(self, batch, logs=None):
    preemption.PREEMPTION.release()


def train(
    values: flags.FlagValues,
    model: Classifier,
    dataset: Dataset,
    workdir: Workdir,
    store: checkpoints.Checkpoints,
    newest: checkpoints.Checkpoint | None,
) -> None:
  """Runs `fit` from the newest checkpoint to its end.

  Args:
    values: the run's flags.
    model: as it was built.
    dataset: the data that it is trained and validated on.
    workdir: where curves and history go.
    store: where checkpoints go.
    newest: of them, if there is one.
  """
  if newest is not None:
    newest.restore(model)
    print(_resuming(newest.position, values.epochs), flush=True)
  every = callbacks.Every(*checkpointing.every(values.checkpoint_every))
  saving = callbacks.Saving(store, values.steps_per_epoch, every, newest)
  fit = functools.partial(_fit, values, model, dataset, workdir, saving)
  try:
    if saving.position.step:
      fit(saving.position.epoch + 1)
      if model.has_averages and saving.position.epoch < values.epochs:
        store.newest().restore(model)  # `fit` has replaced its weights by averages.
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


def _resuming(position, epochs):
  if position.epoch == epochs:
    return 'Training finished; resuming evaluation and export.'
  return (f'Resuming after step {position.steps_done:,}: epoch {position.epoch + 1} '
          f'of {epochs}, step {position.step} of {position.steps_per_epoch}.')


def _fit(values, model, dataset, workdir, saving, last_epoch):
  """Trains up to an epoch from the current position, which may be within an epoch."""
  position, validation = saving.position, dataset.validation
  has_sigma = getattr(model, 'confidence_model', None) is not None
  arguments = {
      'verbose': 1 if sys.stdout.isatty() else 2,
      'callbacks': [
          callbacks.StopOnDivergence(),
          TimeLeft(values.epochs, values.steps_per_epoch),
          callbacks.Curves(
              workdir.tensorboard, position.epoch,
              validation.images[:values.batch_size]
              if has_sigma and len(validation) else None,
              tuple(map(int, values.profile_steps)) or None),
          history.HistoryFile(workdir.history, position.epoch),
          saving,  # After the curves and the row of what it saves.
          WholeSteps(),
      ],
  }
  if len(validation):
    arguments['train_data'] = dataset.train.batches(values.batch_size)
    arguments['validation_data'] = validation.batches(values.batch_size)
  steps = position.steps_per_epoch - position.step
  if steps == 0:
    _validate(model, position, last_epoch, **arguments)
    return
  model.fit(
      build.make_training_data(values, dataset, position.steps_done),
      shuffle=False,  # Batches are random as they come.
      initial_epoch=position.epoch,
      epochs=last_epoch,
      steps_per_epoch=steps,
      **arguments)


def _validate(
    model, position, last_epoch, *, callbacks, verbose, train_data=None,
    validation_data=None):
  """The rest of an epoch of `fit` after its last step."""
  listeners = keras.callbacks.CallbackList(
      callbacks, add_progbar=True, model=model, verbose=verbose, epochs=last_epoch,
      steps=position.steps_per_epoch)
  listeners.on_train_begin()
  listeners.on_epoch_begin(position.epoch)
  logs = dict(position.logs)
  if validation_data is not None:
    with model.averaged(train_data):
      model.forget_calibration()
      model.calibrate(train_data, validation_data)
      figures = model.evaluate(
          validation_data, verbose=0, return_dict=True, callbacks=listeners)
    logs.update({f'val_{name}': value for name, value in figures.items()})
  listeners.on_epoch_end(position.epoch, logs)
  listeners.on_train_end(logs)
