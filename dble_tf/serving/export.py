"""Exports a trained model as a SavedModel for TF Serving."""

import os
import re
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from dble_tf import files
from dble_tf.classifier import Classifier
from dble_tf.data import Dataset
from dble_tf.errors import UserError
from dble_tf.serving import manifest
from dble_tf.serving import server_config
from dble_tf.serving import warm_up
from dble_tf.serving.signatures import signatures


def export(
    model: Classifier,
    directory: str | os.PathLike,
    data: Dataset | None = None,
    *,
    name: str = 'model',
    class_names: Sequence[str] | None = None,
    threshold: float = 0.0,
    examples: np.ndarray | None = None,
    facts: Mapping | None = None,
) -> epath.Path:
  """Writes a new version, `directory`/`name`/<version>, completely or not at all.

  A version is a SavedModel with the signatures of `signatures.signatures`, warm-up
  requests, manifest.json and README.md. Configuration files of TF Serving go into
  `directory` itself.

  Args:
    model: trained and calibrated.
    directory: holds one subdirectory per model, which holds one per version.
    data: supplies `class_names`, and test images as `examples`, if these are not given.
    name: of the model; see `model_name` for the characters that are kept.
    class_names: [M]; the class ids by default.
    threshold: the confidence from which answers are accepted; by default all are.
    examples: images [n, H, W, C] for warm-up requests; a black image by default.
    facts: further entries of the manifest.

  Returns:
    The new version's directory; its number is above all others in `directory`.
  """
  model.require_calibrated()
  directory, name = epath.Path(directory), model_name(name)
  if data is not None:
    class_names = data.class_names if class_names is None else class_names
    examples = (
        data.test.images[:warm_up.BATCH_SIZES[-1]] if examples is None else examples)
  class_names = list(class_names or map(str, range(model.num_classes)))
  examples = _checked_examples(model, examples)
  available = signatures(model, class_names, threshold)
  archive = keras.export.ExportArchive()
  for signature_name, signature in available.items():
    archive.add_endpoint(
        signature_name, signature.function, input_signature=[signature.takes])

  newest = max([int(path.name) for path in versions(directory)], default=0)
  target = directory / name / str(newest + 1)
  with files.replacing(target) as temporary:
    archive.write_out(str(temporary), verbose=False)
    count = (warm_up.write(temporary, name, available, examples)
             if warm_up.is_possible() else 0)
    manifest.write(temporary, {
        'model': name,
        'version': newest + 1,
        'class_names': class_names,
        'threshold': threshold,
        'warm_up_requests': count,
        **(facts or {}),
    })
  server_config.write(
      directory, name, sorted({path.parent.name for path in versions(directory)}))
  return target


def model_name(text: str) -> str:
  """Replaces what cannot be part of a path or of TF Serving's URLs by underscores."""
  return re.sub(r'[^A-Za-z0-9_.-]', '_', text).lstrip('.') or 'model'


def versions(directory: str | os.PathLike) -> list[epath.Path]:
  """Lists the versions `directory`/<model name>/<version>, oldest first."""
  paths = [path for path in epath.Path(directory).glob('*/*') if path.name.isdigit()]
  return sorted(paths, key=lambda path: int(path.name))


def _checked_examples(model, examples):
  inputs = model.encoder.inputs[0]
  if examples is None:
    return np.zeros([1, *inputs.shape[1:]], inputs.dtype)
  # TF Serving does not load a model whose warm-up requests fail.
  if not tf.TensorShape(inputs.shape).is_compatible_with(examples.shape):
    raise UserError(
        f'The model takes images of shape {inputs.shape[1:]}, but the examples have '
        f'shape {examples.shape[1:]}: pass images of the kind it was trained on.')
  return examples
