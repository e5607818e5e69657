"""Requests that TF Serving runs as it loads a model: no user waits for the first one.

They are records of tensorflow-serving-api, which is not among the requirements.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
from etils import epath

from dble_tf.serving.signatures import Signature

try:
  from tensorflow_serving.apis import predict_pb2
  from tensorflow_serving.apis import prediction_log_pb2
except ImportError:
  predict_pb2 = prediction_log_pb2 = None

PATH = 'assets.extra/tf_serving_warmup_requests'
BATCH_SIZES = (1, 8)
MISSING = ('tensorflow-serving-api is not installed, so the export has no warm-up '
           'requests and its first answer takes longer: pip install -r '
           'requirements-serving.txt')


def is_possible() -> bool:
  """Whether tensorflow-serving-api is installed."""
  return predict_pb2 is not None


def write(
    directory: epath.Path,
    name: str,
    signatures: Mapping[str, Signature],
    images: np.ndarray,
) -> int:
  """Writes a request of each batch size for each signature of a SavedModel.

  Args:
    directory: of the SavedModel.
    name: of the model.
    signatures: what it can be asked.
    images: [n, H, W, C], such as users will send.

  Returns:
    The number of requests.
  """
  path = directory / PATH
  path.parent.mkdir(parents=True, exist_ok=True)
  count = 0
  with tf.io.TFRecordWriter(str(path)) as writer:
    for request in requests(name, signatures, images):
      log = prediction_log_pb2.PredictionLog(
          predict_log=prediction_log_pb2.PredictLog(request=request))
      writer.write(log.SerializeToString())
      count += 1
  return count


def requests(
    name: str, signatures: Mapping[str, Signature], images: np.ndarray
) -> Iterator['predict_pb2.PredictRequest']:
  for size in BATCH_SIZES:
    batch = np.resize(images, [size, *images.shape[1:]])
    for signature_name, signature in signatures.items():
      values = batch
      if signature.takes.dtype == tf.string:
        # Both decoders are to be warm.
        encoders = (tf.io.encode_png, tf.io.encode_jpeg)
        values = [encoders[i % 2](tf.cast(image, tf.uint8)).numpy()
                  for i, image in enumerate(batch, start=size)]
      request = predict_pb2.PredictRequest()
      request.model_spec.name = name
      request.model_spec.signature_name = signature_name
      request.inputs[signature.takes.name].CopyFrom(
          tf.make_tensor_proto(values, signature.takes.dtype))
      yield request
