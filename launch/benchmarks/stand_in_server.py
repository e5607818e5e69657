"""A stand-in for TF Serving, for measurements and tests: the same gRPC interface.

As in TF Serving, a SavedModel is loaded into a session by its `serve` tag and run by
signature name, and the shapes of requests are left to the model to check. There is no
batching, no versions and no warm-up.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Servable:
  """A SavedModel in a session of its own.

  Attributes:
    signatures: name -> SignatureDef.
  """

  def __init__(self, directory: str | os.PathLike):
    self._session = tf.compat.v1.Session(graph=tf.Graph())
    with self._session.graph.as_default():
      graph = tf.compat.v1.saved_model.load(
          self._session, [tf.saved_model.SERVING], str(directory))
    self.signatures = dict(graph.signature_def)
    self._runs = {}

  def run(
      self,
      signature_name: str,
      inputs: Mapping[str, np.ndarray],
      outputs: Sequence[str] = (),
  ) -> dict[str, np.ndarray]:
    """Runs a signature.

    Args:
      signature_name: key of `signatures`.
      inputs: by name, all of the signature's.
      outputs: names of those to compute; all if empty.

    Returns:
      Outputs by name.
    """
    if signature_name not in self.signatures:
      raise tf.errors.FailedPreconditionError(
          None, None, f'Serving signature key "{signature_name}" not found.')
    signature = self.signatures[signature_name]
    names = tuple(outputs) or tuple(signature.outputs)
    unknown = {*names} - {*signature.outputs}
    if {*inputs} != {*signature.inputs} or unknown:
      raise tf.errors.InvalidArgumentError(
          None, None, f'The signature takes {sorted(signature.inputs)} and returns '
          f'{sorted(signature.outputs)}.')
    feeds = [signature.inputs[name].name for name in inputs]
    fetches = [signature.outputs[name].name for name in names]
    key = (*feeds, None, *fetches)
    if key not in self._runs:
      # No public way: `run` and `make_callable` compare shapes before they run.
      self._runs[key] = self._session._make_callable_from_options(
          config_pb2.CallableOptions(feed=feeds, fetch=fetches))
    return dict(zip(names, self._runs[key](*inputs.values())))


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
  """TF Serving's Predict, for servables by model name."""

  def __init__(self, servables: Mapping[str, Servable]):
    self._servables = servables

  def Predict(self, request, context):
    spec = request.model_spec
    if spec.name not in self._servables:
      context.abort(grpc.StatusCode.NOT_FOUND,
                    f'Servable not found for request: Latest({spec.name})')
    try:
      outputs = self._servables[spec.name].run(
          spec.signature_name or 'serving_default',
          {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()},
          request.output_filter)
    except tf.errors.OpError as error:
      context.abort(_CODES[error.error_code], error.message)
    response = predict_pb2.PredictResponse(model_spec=spec)
    for name, values in outputs.items():
      response.outputs[name].CopyFrom(_tensor_proto(values))
    return response


def _tensor_proto(values):
  if values.dtype != object:
    return tf.make_tensor_proto(values)
  # tf.make_tensor_proto takes twenty times as long for strings.
  return tensor_pb2.TensorProto(
      dtype=types_pb2.DT_STRING, string_val=values.reshape(-1).tolist(),
      tensor_shape=tf.TensorShape(values.shape).as_proto())


@contextlib.contextmanager
def serving(servables: Mapping[str, Servable]) -> Iterator[str]:
  """Yields the loopback address of a server that runs until the block ends."""
  server = grpc.server(
      futures.ThreadPoolExecutor(max_workers=8),
      options=[('grpc.max_receive_message_length', -1)])
  prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
      PredictionService(servables), server)
  port = server.add_insecure_port('localhost:0')
  server.start()
  try:
    yield f'localhost:{port}'
  finally:
    server.stop(grace=None)
