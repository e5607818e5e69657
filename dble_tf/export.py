"""A trained model as a SavedModel for TF Serving."""

import os

import keras
import tensorflow as tf
from etils import epath

from dble_tf import atomic
from dble_tf.classifier import Classifier


def export(model: Classifier, directory: str | os.PathLike) -> epath.Path:
  """Writes the next integer version under `directory`, complete or not at all.

  The signature `serving_default` takes raw images [B, H, W, C] and gives what
  `model.serve` does: label [B], confidence [B] and probabilities [B, M]; of a DBLE
  also distance [B] to the predicted center and sigma [B], the mean over the
  representation's dimensions. The batch is dynamic.

  Args:
    model: trained and completed.
    directory: holds one subdirectory a version, as TF Serving expects.

  Returns:
    The new version's directory.
  """
  model.require_complete()
  inputs = model.encoder.inputs[0]
  archive = keras.export.ExportArchive()
  archive.add_endpoint('serve', model.serve, input_signature=[
      tf.TensorSpec([None, *inputs.shape[1:]], inputs.dtype, name='images')])
  newest = max([int(path.name) for path in versions(directory)], default=0)
  target = epath.Path(directory) / str(newest + 1)
  with atomic.replacing(target) as temporary:
    archive.write_out(str(temporary), verbose=False)
  return target


def versions(directory: str | os.PathLike) -> list[epath.Path]:
  """The versions under `directory`, oldest first."""
  paths = [path for path in epath.Path(directory).glob('*') if path.name.isdigit()]
  return sorted(paths, key=lambda path: int(path.name))
