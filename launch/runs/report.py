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
    if 'sigma_mean' in split:
      results[f'{name}_without_sigma'] = evaluation.figures(
          evaluation.without_sigma(split))
  if 'sigma_mean' in predictions['test']:
    results['sigma'] = evaluation.sigma_figures(predictions['test'])
  _write_plots(workdir, results, predictions['test'])
  _write_predictions(workdir, predictions['test'])
  if isinstance(model, DBLE) and model.confidence_model is not None:
    results['calibration'] = _calibration(model, representations.get('validation'))
    results['parts'] = [
        part.as_json() for part in parts.compare(model, representations)]
  with files.replacing(workdir.metrics) as temporary:
    temporary.write_text(json.dumps(results, indent=2) + '\n')


def _write_plots(workdir, results, predictions):
  panels = {results['method']: predictions}
  if 'sigma_mean' in predictions:
    panels = {'without sigma': evaluation.without_sigma(predictions), **panels}
  plots.reliability_diagram(workdir.reliability, panels)
  if 'distance_to_true' in predictions and results.get('sigma', {}).get('mean'):
    plots.sigma(workdir.sigma, predictions)


def _write_predictions(workdir, predictions):
  # In memory first: zip files are not written from start to end.
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **{
      name: values for name, values in predictions.items() if name != 'logits'})
  with files.replacing(workdir.predictions) as temporary:
    temporary.write_bytes(buffer.getvalue())


def _calibration(model, validation):
  """Alpha and T in use, and the gain in NLL of those that were searched for."""
  result = {
      'scaling': model.scaling,
      'sigma_scale': float(model.sigma_scale.numpy()),
      'temperature': float(model.temperature.numpy()),
  }
  if validation is not None:
    fitted = calibration.fit(
        model.held_out(validation, model.confidence_model), model.scaling)
    result.update(gain=fitted.gain, gain_error=fitted.gain_error)
  return result


def show(workdir: Workdir) -> None:
  """Prints the run's figures and the paths of its results."""
  results = workdir.read_metrics()
  print(f'\n{results["experiment"]}, {results["method"]}, seed {results["seed"]}: '
        f'{results["steps"]:,} steps', end='')
  if 'images' in results:
    print(f' in {results["seconds"]:.0f} s, '
          f'{results["images"] / results["seconds"]:,.0f} images/s', end='')
  print(f'\n\n{"":28}{"accuracy":>10}{"ECE":>10}{"NLL":>10}')
  for split in _SPLITS:
    for key, title in ((split, split),
                       (f'{split}_without_sigma', f'{split}, without sigma')):
      if key in results:
        figures = results[key]
        print(f'{title:28}{100 * figures["accuracy"]:>8.2f} %'
              f'{100 * figures["ece"]:>8.2f} %{figures["nll"]:>10.4f}')
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
  gain = (f'gain {fitted["gain"]:.4f} ± {fitted["gain_error"]:.4f} of NLL on '
          'validation data' if 'gain' in fitted else '')
  if not fitted['sigma_scale']:
    return f'sigma disabled: no significant {gain}'
  if fitted['scaling'] == 'none':
    return 'sigma as learned, not scaled'
  return (f'sigma times {fitted["sigma_scale"]:.3g}, distances over '
          f'{fitted["temperature"]:.3g}: {gain}')
