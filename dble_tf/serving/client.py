"""Clients that ask an exported model about image files.

`over_grpc` and `over_rest` talk to TF Serving; `of_saved_model` needs no server. Each
returns a function from PNG and JPEG files [n] to the outputs named in `OUTPUTS`, [n]
each. It raises `Refused` if the model rejects the files, `Unavailable` if the server
cannot answer for the model, and another `UserError` if the model is not an export of
this package.
"""

import base64
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dble_tf.errors import UserError

OUTPUTS = ('label', 'label_name', 'confidence', 'accept')
SIGNATURE, INPUT = 'serving_bytes', 'image_bytes'

Answers = dict[str, np.ndarray]
Client = Callable[[Sequence[bytes]], Answers]


class Refused(UserError):
  """The model rejects these files; the message says why."""


class Unavailable(UserError):
  """The server cannot be reached, or does not serve this model."""


def over_grpc(server: str, model: str, timeout: float) -> Client:
  """Connects to TF Serving's gRPC interface.

  Args:
    server: host:port, 8500 by TF Serving's default.
    model: its name on the server.
    timeout: seconds to wait for an answer.
  """
  try:
    import grpc
    from tensorflow_serving.apis import predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc
  except ImportError:
    raise UserError(
        'The gRPC client needs a package that is not installed: pip install '
        'tensorflow-serving-api, or use REST or the SavedModel itself.') from None
  channel = grpc.insecure_channel(server)
  stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

  def ask(files):
    request = predict_pb2.PredictRequest(output_filter=OUTPUTS)
    request.model_spec.name = model
    request.model_spec.signature_name = SIGNATURE
    request.inputs[INPUT].CopyFrom(tf.make_tensor_proto(list(files), tf.string))
    try:
      response = stub.Predict(request, timeout=timeout)
    except grpc.RpcError as error:
      if (error.code() == grpc.StatusCode.INVALID_ARGUMENT
          and not _blames_the_model(error.details())):
        raise Refused(_reason(error.details())) from None
      raise _unavailable(
          server, model, f'{error.code().name}: {_reason(error.details())}') from None
    return _answers({name: tf.make_ndarray(values)
                     for name, values in response.outputs.items()}, len(files))

  return ask


def over_rest(server: str, model: str, timeout: float) -> Client:
  """Connects to TF Serving's REST interface.

  Args:
    server: host:port, 8501 by TF Serving's default.
    model: its name on the server.
    timeout: seconds to wait for an answer.
  """
  url = f'http://{server}/v1/models/{model}:predict'

  def ask(files):
    body = {'signature_name': SIGNATURE, 'inputs': {INPUT: [
        {'b64': base64.b64encode(file).decode('ascii')} for file in files]}}
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {'Content-Type': 'application/json'})
    try:
      with urllib.request.urlopen(request, timeout=timeout) as response:
        outputs = json.load(response)['outputs']
    except urllib.error.HTTPError as error:
      message = _rest_message(error)
      if error.code == 400 and not _blames_the_model(message):
        raise Refused(message) from None
      raise _unavailable(server, model, f'{error.code}: {message}') from None
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
      raise _unavailable(server, model, error) from None
    return _answers(outputs, len(files))

  return ask


def of_saved_model(directory: str | os.PathLike) -> Client:
  """Loads one version of an export into this process.

  Args:
    directory: of the SavedModel, such as export/model/1.
  """
  try:
    signature = tf.saved_model.load(str(directory)).signatures[SIGNATURE]
  except (OSError, KeyError) as error:
    raise UserError(
        f'{directory} holds no SavedModel with the signature {SIGNATURE}: pass the '
        'directory of one version of an export, such as export/model/1.') from error

  def ask(files):
    try:
      outputs = signature(**{INPUT: tf.constant(list(files), tf.string)})
    except tf.errors.InvalidArgumentError as error:
      raise Refused(_reason(error.message)) from None
    return _answers(
        {name: outputs[name].numpy() for name in OUTPUTS}, len(files))

  return ask


def _answers(outputs, count):
  """Checks a model's outputs and converts them to arrays of str, numbers and bool."""
  try:
    answers = {name: np.asarray(outputs[name]) for name in OUTPUTS}
  except KeyError as error:
    raise UserError(
        f'The model has no output {error}: it was not exported by dble_tf.') from None
  if any(values.shape != (count,) for values in answers.values()):
    raise UserError('The model did not return one answer per file.')
  if answers['label_name'].dtype == object:
    answers['label_name'] = np.array(
        [name.decode('utf-8') for name in answers['label_name']], object)
  return answers


def _unavailable(server, model, cause):
  return Unavailable(
      f'{server} did not answer for model {model!r} ({cause}). Check the host, the '
      'port (8500 for gRPC, 8501 for REST by default) and that models.config on the '
      'server lists the model.')


def _blames_the_model(message):
  """Tells an error of a model that lacks the signature from one about the files."""
  return bool(re.search('signature|named input|output tensor alias', message, re.I))


def _rest_message(error):
  try:
    return _reason(json.load(error)['error'])
  except (ValueError, KeyError, TypeError):
    return error.reason


def _reason(text):
  """Reduces an error of TensorFlow to its reason, without the graph nodes it names."""
  lines = [line.strip() for line in (text or '').splitlines() if line.strip()]
  # The reason is the line above the first node, which is in double brackets.
  nodes = [i for i, line in enumerate(lines) if line.startswith('[[')]
  reason = lines[max(nodes[0] - 1, 0)] if nodes else ''.join(lines[:1])
  return re.sub(r'^({{.*?}} *)+', '', reason) or 'no reason given'
