"""Asks an export about image files: over gRPC, over REST, or without a server.

Every client is a function: PNG and JPEG files [n] -> `OUTPUTS` by name, [n] each. It
raises `Refused` where the files are to blame, and another `UserError` where nothing can
be asked.
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

try:
  import grpc
  from tensorflow_serving.apis import predict_pb2
  from tensorflow_serving.apis import prediction_service_pb2_grpc
except ImportError:
  grpc = predict_pb2 = prediction_service_pb2_grpc = None

OUTPUTS = ('label', 'label_name', 'confidence', 'accept')
SIGNATURE, INPUT = 'serving_bytes', 'image_bytes'

Answers = dict[str, np.ndarray]
Client = Callable[[Sequence[bytes]], Answers]


class Refused(UserError):
  """The model does not take these files; the message says why."""


def over_grpc(server: str, model: str, timeout: float) -> Client:
  """Asks TF Serving at host:port, where its --port is."""
  if grpc is None:
    raise UserError(
        'gRPC needs tensorflow-serving-api, which is not installed: pip install -r '
        'requirements-serving.txt, or use --rest or --saved_model.')
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
          and not _is_of_the_model(error.details())):
        raise Refused(_reason(error.details())) from None
      raise _failure(
          server, model, f'{error.code().name}: {_reason(error.details())}') from None
    return _answers({name: tf.make_ndarray(values)
                     for name, values in response.outputs.items()}, len(files))

  return ask


def over_rest(server: str, model: str, timeout: float) -> Client:
  """Asks TF Serving at host:port, where its --rest_api_port is."""
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
      if error.code == 400 and not _is_of_the_model(message):
        raise Refused(message) from None
      raise _failure(server, model, f'{error.code}: {message}') from None
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
      raise _failure(server, model, error) from None
    return _answers(outputs, len(files))

  return ask


def of_saved_model(directory: str | os.PathLike) -> Client:
  """Asks the SavedModel in a directory, which is one version of an export."""
  try:
    signature = tf.saved_model.load(str(directory)).signatures[SIGNATURE]
  except (OSError, KeyError) as error:
    raise UserError(
        f'{directory} holds no SavedModel with the signature {SIGNATURE}: give a '
        'version of an export, such as runs/digits/export/digits/1.') from error

  def ask(files):
    try:
      outputs = signature(**{INPUT: tf.constant(list(files), tf.string)})
    except tf.errors.InvalidArgumentError as error:
      raise Refused(_reason(error.message)) from None
    return _answers(
        {name: outputs[name].numpy() for name in OUTPUTS}, len(files))

  return ask


def _answers(outputs, count):
  """What a server gave, as arrays of text, numbers and booleans."""
  try:
    answers = {name: np.asarray(outputs[name]) for name in OUTPUTS}
  except KeyError as error:
    raise UserError(
        f'The model gives no {error}: it is no export of this package.') from None
  if any(values.shape != (count,) for values in answers.values()):
    raise UserError('The model did not give one answer a file.')
  if answers['label_name'].dtype == object:
    answers['label_name'] = np.array(
        [name.decode('utf-8') for name in answers['label_name']], object)
  return answers


def _failure(server, model, cause):
  return UserError(
      f'{server} did not answer for the model {model!r} ({cause}). --server is its '
      "host and port, 8500 for gRPC or 8501 for --rest by TF Serving's defaults; --model "
      'is the name in models.config.')


def _is_of_the_model(message):
  """Whether an error is that of a model without what is asked, not of the files."""
  return bool(re.search('signature|named input|output tensor alias', message, re.I))


def _rest_message(error):
  try:
    return _reason(json.load(error)['error'])
  except (ValueError, KeyError, TypeError):
    return error.reason


def _reason(text):
  """What an error of TensorFlow says, without the places in the graph it is from."""
  lines = [line.strip() for line in (text or '').splitlines() if line.strip()]
  # The reason stands before the first place, which is in double brackets.
  places = [i for i, line in enumerate(lines) if line.startswith('[[')]
  reason = lines[max(places[0] - 1, 0)] if places else ''.join(lines[:1])
  return re.sub(r'^({{.*?}} *)+', '', reason) or 'no reason given'
