"""Warm-up requests: TF Serving runs them as it loads a model.

Without them the first requests of users would wait for the graph to be optimized. They
are records of tensorflow-serving-api, which is imported where it is needed: a TPU VM
cannot have it, because it installs another build of TensorFlow.
"""

import importlib.util
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from etils import epath

from dble_tf.serving.signatures import Signature

PATH = 'assets.extra/tf_serving_warmup_requests'
BATCH_SIZES = (1, 8)
MISSING = ('The export has no warm-up requests, so its first answers take longer: '
           'pip install tensorflow-serving-api')


def is_possible() -> bool:
  """Returns True if tensorflow-serving-api is installed."""
  return importlib.util.find_spec('tensorflow_serving') is not None


def write(
    directory: epath.Path,
    name: str,
    signatures: Mapping[str, Signature],
    images: np.ndarray,
) -> int:
  """Writes one request per batch size and signature of a SavedModel.

  Args:
    directory: of the SavedModel.
    name: of the model.
    signatures: of the model.
    images: [n, H, W, C], such as users will send.

  Returns:
    The number of requests.
  """
  from tensorflow_serving.apis import prediction_log_pb2
  path = directory / PATH
  path.parent.mkdir(parents=True, exist_ok=True)
  count = 0
  with tf.io.TFRecordWriter(str(path)) as writer:
    for request in _requests(name, signatures, images):
      log = prediction_log_pb2.PredictionLog(
          predict_log=prediction_log_pb2.PredictLog(request=request))
      writer.write(log.SerializeToString())
      count += 1
  return count


def _requests(name, signatures, images):
  from tensorflow_serving.apis import predict_pb2
  for size in BATCH_SIZES:
    batch = np.resize(images, [size, *images.shape[1:]])
    for signature_name, signature in signatures.items():
      values = batch
      if signature.takes.dtype == tf.string:
        # Both decoders have to be warmed up.
        encoders = (tf.io.encode_png, tf.io.encode_jpeg)
        values = [encoders[i % 2](tf.cast(image, tf.uint8)).numpy()
                  for i, image in enumerate(batch, start=size)]
      request = predict_pb2.PredictRequest()
      request.model_spec.name = name
      request.model_spec.signature_name = signature_name
      request.inputs[signature.takes.name].CopyFrom(
          tf.make_tensor_proto(values, signature.takes.dtype))
      yield request
