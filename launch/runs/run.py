"""The commands train, evaluate and export: a run from its flags to its results."""

import sys
import time
from collections.abc import Sequence

import keras
import tensorflow as tf
from absl import flags

from dble_tf import checks
from dble_tf import evaluation
from dble_tf import files
from dble_tf.classifier import Classifier
from dble_tf.classifier import Representations
from dble_tf.data import Dataset
from dble_tf.errors import UserError
from dble_tf.serving import export as exports
from dble_tf.training import checkpoints
from dble_tf.training import strategies

from ..cli import invocation
from ..settings import experiment
from ..settings import targets
from . import build
from . import components
from . import fitting
from . import publish
from . import report
from . import trained_runs
from .workdir import Workdir

_REPLACE = 'or --overwrite to replace it'
_REPORTED = ('test', 'validation')  # The splits that figures are computed on.


def train(values: flags.FlagValues, names: list[str]) -> None:
  """Trains, calibrates, exports and evaluates, or continues where a run was killed.

  Args:
    values: the flags.
    names: of those that are settings of a run.
  """
  if values.deterministic:
    tf.config.experimental.enable_op_determinism()
  workdir = Workdir(values.workdir or f'runs/{experiment.name(values)}')
  workdir.check()
  values = experiment.resolved(values, targets.are_given(values))
  config = experiment.config(values, names)
  if _is_finished(values, workdir, config):
    workdir.require_data(build.load_dataset(values).fingerprint, _REPLACE)
    if workdir.checkpoints.exists():  # It was killed just before its end.
      with workdir.lock():
        files.remove(workdir.checkpoints)
    print('This run is finished; --overwrite repeats it, and '
          f'{invocation.typed("export")} exports it with another target.')
    report.show(workdir)
    return

  taken = trained_runs.find(values, names)
  strategy = build.make_strategy(values)
  jit_compile = strategies.jit_compile(values.jit_compile, strategy)
  keras.utils.set_random_seed(values.seed)
  dataset = build.load_dataset(values)
  for trained_run in taken:
    trained_run.require_data(dataset.fingerprint, 'or leave --trained_runs out')
  target = publish.target(values, dataset)
  with strategy.scope():
    model = build.build_model(values, dataset)
  if jit_compile != 'auto':
    model.jit_compile = jit_compile
  if model.needs_held_out and not len(dataset.validation):
    raise UserError(
        f'{values.method} is calibrated on images that the encoder was not trained on: '
        'hold some out with --validation_size.')
  if not taken:  # Refuses data that the training batches cannot be made of.
    checks.require_equal_parts(
        build.make_training_data(values, dataset), strategy.num_replicas_in_sync)
  with workdir.lock():
    if not _is_finished(values, workdir, config):  # By another process meanwhile.
      store = checkpoints.Checkpoints(workdir.checkpoints, config)
      newest = _begin(values, workdir, config, dataset, store)
      _run(values, model, dataset, taken, target, workdir, store, newest)
      store.remove()
  report.show(workdir)


def evaluate(values: flags.FlagValues) -> None:
  """Computes the figures of a finished run again, from its saved model."""
  workdir = Workdir(values.workdir)
  workdir.require_model()
  with workdir.lock():
    workdir.remove_incomplete()
    model, settings, dataset = _load(workdir, values.data_dir)
    facts = report.facts(settings)
    if workdir.is_finished:
      before = workdir.read_metrics()
      facts.update({name: before[name] for name in ('images', 'seconds', 'replicas')
                    if name in before})
    representations = _represent(model, dataset, settings.batch_size, _REPORTED)
    report.write(
        workdir, model, representations, _predict(model, representations), facts)
  report.show(workdir)


def export(values: flags.FlagValues) -> None:
  """Exports the model of a finished run as a new version."""
  workdir = Workdir(values.workdir)
  workdir.require_model()
  with workdir.lock():
    model, settings, dataset = _load(workdir, values.data_dir)
    target = publish.target(values, dataset)
    representations = _represent(model, dataset, settings.batch_size)
    publish.write(
        workdir, model, dataset, settings, target, _predict(model, representations))
  newest = exports.versions(workdir.export)[-1]
  print((newest / 'README.md').read_text())
  print(f'SavedModel {newest}')


def _load(workdir, data_dir):
  """Model, settings and data of a finished run."""
  settings = experiment.of_run(
      workdir.config, data_dir or workdir.read_data()['data_dir'])
  model = workdir.load_model()
  dataset = build.load_dataset(settings)
  workdir.require_data(dataset.fingerprint, 'or train again')
  return model, settings, dataset


def _is_finished(values, workdir, config):
  """True if there is nothing to do; refuses the directory of another run."""
  if values.overwrite:
    return False
  workdir.require(config, _REPLACE)
  return workdir.is_finished


def _begin(values, workdir, config, dataset, store):
  """The newest checkpoint of an unfinished run of these settings and data."""
  if workdir.holds(config) and not workdir.is_finished:
    if not values.overwrite:
      workdir.require_data(dataset.fingerprint, _REPLACE)
    if workdir.read_data()['fingerprint'] == dataset.fingerprint:
      newest = store.newest()
      if newest is not None:
        workdir.remove_incomplete()
        # They may have moved.
        workdir.record_data(dataset.fingerprint, values.data_dir)
        return newest
  workdir.start(config, dataset.fingerprint, values.data_dir)
  return None


def _run(values, model, dataset, taken, target, workdir, store, newest):
  """Trains, or takes trained networks; calibrates, saves, exports and evaluates."""
  start = time.monotonic()
  if taken:
    start -= sum(run.read_metrics()['seconds'] for run in taken)
    model.take_trained(*(run.load_model() for run in taken))
  else:
    start -= newest.position.seconds if newest else 0.0
    fitting.train(values, model, dataset, workdir, store, newest)
    model.take_averages(dataset.train.batches(values.batch_size), _verbose())
  # Each image is encoded once for calibration, threshold, export and report.
  representations = _represent(model, dataset, values.batch_size)
  model.calibrate(
      dataset.train.batches(values.batch_size), representations.get('validation'),
      _verbose())
  seconds = time.monotonic() - start

  with files.replacing(workdir.model) as temporary:
    model.save(temporary)
  predictions = _predict(model, representations)
  publish.write(workdir, model, dataset, values, target, predictions)
  facts = report.facts(values)
  report.write(workdir, model, _reported(representations), _reported(predictions), {
      **facts,
      'images': facts['steps'] * components.images_per_step(values, dataset),
      'seconds': seconds,
      'replicas': model.distribute_strategy.num_replicas_in_sync})


def _represent(
    model: Classifier, dataset: Dataset, batch_size: int,
    names: Sequence[str] = (*_REPORTED, 'threshold'),
) -> dict[str, Representations]:
  """Encodes splits, but for empty ones."""
  splits = {name: getattr(dataset, name) for name in names}
  return {name: model.represent(split.batches(batch_size), _verbose())
          for name, split in splits.items() if len(split)}


def _reported(by_split):
  return {name: by_split[name] for name in _REPORTED if name in by_split}


def _predict(model, representations):
  model.require_calibrated()
  return {name: evaluation.predict(model, split)
          for name, split in representations.items()}


def _verbose():
  return int(sys.stdout.isatty())
