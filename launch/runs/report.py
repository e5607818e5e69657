"""The figures of a run: computed, written to its directory, shown."""

import io
import json
import platform
from collections.abc import Mapping
from importlib import metadata

import numpy as np
import tensorflow as tf
from absl import flags

from dble_tf import calibration
from dble_tf import evaluation
from dble_tf import files
from dble_tf import plots
from dble_tf.classifier import Classifier
from dble_tf.classifier import Representations
from dble_tf.model import DBLE
from dble_tf.serving import export

from ..settings import experiment
from . import parts
from .workdir import Workdir

_PACKAGES = ('keras', 'tensorflow-probability', 'tensorflow-datasets')
_SPLITS = ('test', 'validation')
# The parts of a DBLE that are shown beside it, and those that are plotted.
_TITLES = {'prototypical': 'without sigma', 'without_held_out': 'no held-out data'}
_PANELS = {'prototypical': 'without sigma'}


def facts(values: flags.FlagValues) -> dict:
  """The entries of metrics.json besides a run's figures and its time."""
  return {
      'experiment': experiment.name(values),
      'method': values.method,
      'seed': values.seed,
      'steps': values.epochs * values.steps_per_epoch,
      'versions': _versions(),
  }


def _versions() -> dict[str, str]:
  # The package of TensorFlow has another name on a TPU.
  return {'python': platform.python_version(), 'tensorflow': tf.__version__,
          **{name: metadata.version(name) for name in _PACKAGES}}


def write(
    workdir: Workdir,
    model: Classifier,
    representations: Mapping[str, Representations],
    predictions: Mapping[str, evaluation.Predictions],
    facts: dict,
) -> None:
  """Writes predictions.npz, the plots and, last, metrics.json.

  Args:
    workdir: where to write.
    model: trained and calibrated.
    representations: by split, test and validation.
    predictions: likewise.
    facts: entries of metrics.json besides the figures.
  """
  results = {**facts, 'parameters': sum(
      int(np.prod(variable.shape)) for variable in model.inference_variables)}
  for name, split in predictions.items():
    results[name] = evaluation.figures(split)
  kinds = {}
  if 'sigma_mean' in predictions['test']:
    results['sigma'] = evaluation.sigma_figures(predictions['test'])
  if isinstance(model, DBLE) and model.confidence_model is not None:
    results['calibration'] = _calibration(model, representations.get('validation'))
    kinds = parts.compare(model, representations)
    results['parts'] = {
        title: {'sigma_scale': part.sigma_scale, 'temperature': part.temperature,
                **{name: evaluation.figures(evaluation.with_probabilities(
                    split, part.probabilities[name]))
                   for name, split in predictions.items()}}
        for title, part in kinds.items()}
  _write_plots(workdir, results, predictions['test'], kinds)
  _write_predictions(workdir, predictions, kinds)
  with files.replacing(workdir.metrics) as temporary:
    temporary.write_text(json.dumps(results, indent=2) + '\n')


def _write_plots(workdir, results, predictions, kinds):
  panels = {
      title: evaluation.with_probabilities(
          predictions, kinds[name].probabilities['test'])
      for name, title in _PANELS.items() if name in kinds}
  plots.reliability_diagram(
      workdir.reliability, {**panels, results['method']: predictions})
  if 'distance_to_true' in predictions and results.get('sigma', {}).get('mean'):
    plots.sigma(workdir.sigma, predictions)


def _write_predictions(workdir, predictions, kinds):
  arrays = {f'{split}_{name}': values for split, outputs in predictions.items()
            for name, values in outputs.items()}
  arrays.update({
      f'{split}_probabilities_{title}': probabilities
      for title, part in kinds.items()
      for split, probabilities in part.probabilities.items()})
  # In memory first: zip files are not written from start to end.
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **arrays)
  with files.replacing(workdir.predictions) as temporary:
    temporary.write_bytes(buffer.getvalue())


def _calibration(model, validation):
  """Alpha and T in use, and the gain of sigma in NLL on validation images."""
  result = {
      'scaling': model.scaling,
      'images': int(model.calibration_size.numpy()),
      'sigma_scale': float(model.sigma_scale.numpy()),
      'temperature': float(model.temperature.numpy()),
  }
  if validation is not None:
    judged = calibration.judge(
        model.held_out(validation, model.confidence_model),
        result['sigma_scale'], result['temperature'])
    result.update(gain=judged.gain, gain_error=judged.gain_error)
  return result


def show(workdir: Workdir) -> None:
  """Prints the run's figures and the paths of its results."""
  results = workdir.read_metrics()
  print(f'\n{results["experiment"]}, {results["method"]}, seed {results["seed"]}: '
        f'{results["steps"]:,} steps', end='')
  if 'images' in results:
    print(f' in {results["seconds"]:.0f} s, '
          f'{results["images"] / results["seconds"]:,.0f} images/s', end='')
  print(f'\n\n{"":36}{"accuracy":>10}{"ECE":>10}{"NLL":>10}')
  for split in _SPLITS:
    lines = {split: results,
             **{f'{split}, {_TITLES[name]}': part for name, part
                in results.get('parts', {}).items() if name in _TITLES}}
    for title, figures in lines.items():
      if split in figures:
        print(f'{title:36}{100 * figures[split]["accuracy"]:>8.2f} %'
              f'{100 * figures[split]["ece"]:>8.2f} %{figures[split]["nll"]:>10.4f}')
  if 'calibration' in results:
    print(f'\n{_sentence(results["calibration"])}')
  print()
  for title, path in (
      ('figures', workdir.metrics), ('plot', workdir.reliability),
      *([('plot', workdir.sigma)] if workdir.sigma.exists() else []),
      ('predictions', workdir.predictions), ('model', workdir.model),
      *(('SavedModel', path) for path in export.versions(workdir.export)[-1:]),
      ('settings', workdir.config),
      ('curves', f'tensorboard --logdir={workdir.tensorboard}')):
    print(f'{title:12} {path}')


def _sentence(fitted):
  """A sentence on the outcome of calibration."""
  gain = (f': gain {fitted["gain"]:.4f} ± {fitted["gain_error"]:.4f} of NLL over '
          'a temperature without sigma on validation images'
          if 'gain' in fitted else '')
  if fitted['scaling'] == 'none':
    return f'sigma as learned, not scaled{gain}'
  if not fitted['images']:
    return (f'sigma times {fitted["sigma_scale"]:.3g}, fixed beforehand: there are no '
            'held-out images to fit it on')
  return (f'sigma times {fitted["sigma_scale"]:.3g}, distances over '
          f'{fitted["temperature"]:.3g}{gain}')
