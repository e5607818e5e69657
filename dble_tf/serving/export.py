"""A trained model as a SavedModel for TF Serving."""

import os
import re
from collections.abc import Mapping, Sequence

import keras
import numpy as np
from etils import epath

from dble_tf import files
from dble_tf.serving import manifest
from dble_tf.serving import server_config
from dble_tf.serving import warm_up
from dble_tf.classifier import Classifier
from dble_tf.serving.signatures import signatures


def export(
    model: Classifier,
    directory: str | os.PathLike,
    *,
    name: str = 'model',
    class_names: Sequence[str] | None = None,
    threshold: float = 0.0,
    examples: np.ndarray | None = None,
    facts: Mapping | None = None,
) -> epath.Path:
  """Writes `directory`/<model name>/<version>, complete or not at all.

  A version is a SavedModel with the signatures of `signatures.signatures`, warm-up
  requests, manifest.json and README.md. Settings of TF Serving go beside the models.

  Args:
    model: trained and completed.
    directory: holds one subdirectory a model, and there one a version.
    name: of the model; `model_name` makes one of any text.
    class_names: M names; the class ids themselves where none are given.
    threshold: the confidence from which answers are accepted; of all if not given.
    examples: images [n, H, W, C] for warm-up requests; black where none are given.
    facts: what the manifest says besides what is known here.

  Returns:
    The new version's directory; its number is above all others in `directory`.
  """
  model.require_complete()
  directory, name = epath.Path(directory), model_name(name)
  class_names = list(class_names or map(str, range(model.num_classes)))
  available = signatures(model, class_names, threshold)
  archive = keras.export.ExportArchive()
  for signature_name, signature in available.items():
    archive.add_endpoint(
        signature_name, signature.function, input_signature=[signature.takes])
  if examples is None:
    inputs = model.encoder.inputs[0]
    examples = np.zeros([1, *inputs.shape[1:]], inputs.dtype)

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
      directory, sorted({path.parent.name for path in versions(directory)}))
  return target


def model_name(text: str) -> str:
  """A name that can stand in paths and in TF Serving's URLs."""
  return re.sub(r'[^A-Za-z0-9_.-]', '_', text).lstrip('.') or 'model'


def versions(directory: str | os.PathLike) -> list[epath.Path]:
  """The versions `directory`/<model name>/<version>, oldest first."""
  paths = [path for path in epath.Path(directory).glob('*/*') if path.name.isdigit()]
  return sorted(paths, key=lambda path: int(path.name))
