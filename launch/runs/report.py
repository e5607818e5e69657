"""The figures of a run: computed, written to its directory, shown."""

import io
import json
import platform
import sys
from importlib import metadata

import numpy as np
import tensorflow as tf
from absl import flags

from dble_tf import files
from dble_tf import data as datasets
from dble_tf import evaluation
from dble_tf.serving import export
from dble_tf import parts
from dble_tf import plots
from dble_tf.classifier import Classifier
from dble_tf.model import DBLE
from launch import experiment
from launch.workdir import Workdir

_PACKAGES = ('keras', 'tensorflow-probability', 'tensorflow-datasets')
_SPLITS = ('test', 'validation')


def write(
    workdir: Workdir,
    model: Classifier,
    dataset: datasets.Dataset,
    batch_size: int,
    facts: dict,
) -> None:
  """Evaluates a model and writes predictions.npz, the plot and metrics.json.

  Args:
    workdir: where to write.
    model: trained, with class centers if it has any.
    dataset: whose test and validation splits are evaluated.
    batch_size: images at a time.
    facts: what metrics.json says besides the figures.
  """
  results = {**facts, 'parameters': sum(
      int(np.prod(variable.shape)) for variable in model.answering)}
  verbose = int(sys.stdout.isatty())
  splits = {name: getattr(dataset, name) for name in _SPLITS
            if len(getattr(dataset, name))}
  for name, split in splits.items():
    predictions = evaluation.predict(model, split, batch_size, verbose)
    results[name] = evaluation.figures(predictions)
    panels = {results['method']: predictions}
    if 'sigma_mean' in predictions:
      plain = evaluation.without_sigma(predictions)
      results[f'{name}_without_sigma'] = evaluation.figures(plain)
      panels = {'without sigma': plain, **panels}
    if name == 'test':
      plots.reliability_diagram(workdir.reliability, panels)
      if 'sigma_mean' in predictions:
        results['sigma'] = evaluation.sigma_figures(predictions)
        if 'distance_to_true' in predictions and results['sigma']['mean'] > 0:
          plots.sigma(workdir.sigma, predictions)
      predictions.pop('logits', None)
      # In memory first: zip files are not written from start to end.
      buffer = io.BytesIO()
      np.savez_compressed(buffer, **predictions)
      with files.replacing(workdir.predictions) as temporary:
        temporary.write_bytes(buffer.getvalue())
  if isinstance(model, DBLE):
    names = results['confidence_candidates']
    results['confidence_model'] = {
        'chosen': names[model.chosen],
        'scaling': model.scaling,
        'sigma_scale': float(model.sigma_scale[model.chosen]),
        'temperature': float(model.temperature[model.chosen]) or 1.0,
        'held_out_nll': dict(zip(names, model.held_out_nll.numpy().tolist())),
    }
    results['parts'] = parts.compare(
        model, names,
        {name: split.batches(batch_size) for name, split in splits.items()}, verbose)
  with files.replacing(workdir.metrics) as temporary:
    temporary.write_text(json.dumps(results, indent=2) + '\n')


def facts(values: flags.FlagValues) -> dict:
  """What metrics.json says of a run besides its figures and its time."""
  return {
      'experiment': experiment.name(values),
      'method': values.method,
      'seed': values.seed,
      'steps': values.epochs * values.steps_per_epoch,
      **({'confidence_candidates': values.confidence_candidates}
         if values.method == 'dble' else {}),
      'versions': _versions(),
  }


def _versions() -> dict[str, str]:
  # The package of TensorFlow has another name on a TPU.
  return {'python': platform.python_version(), 'tensorflow': tf.__version__,
          **{name: metadata.version(name) for name in _PACKAGES}}


def show(workdir: Workdir) -> None:
  """Prints the run's figures and where its results are."""
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
  if 'confidence_model' in results:
    chosen = results['confidence_model']
    if chosen['sigma_scale']:
      print(f'\nconfidence model "{chosen["chosen"]}", sigma times '
            f'{chosen["sigma_scale"]:.3g}, distances over {chosen["temperature"]:.3g}')
    else:
      print('\nno sigma: none pays on the validation split')
  print()
  for title, path in (
      ('figures', workdir.metrics), ('plot', workdir.reliability),
      *([('plot', workdir.sigma)] if workdir.sigma.exists() else []),
      ('predictions', workdir.predictions), ('model', workdir.model),
      *(('SavedModel', path) for path in export.versions(workdir.export)[-1:]),
      ('settings', workdir.config),
      ('curves', f'tensorboard --logdir={workdir.tensorboard}')):
    print(f'{title:12} {path}')
