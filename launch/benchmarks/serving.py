"""The cost of serving: an export of DBLE beside one of its encoder alone."""

import functools
import pathlib
import time

import grpc
import keras
import numpy as np
import tensorflow as tf
from absl import flags
from etils import epath
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from dble_tf.data import Dataset
from dble_tf.serving import export

from ..runs import build
from ..settings import experiment
from . import stand_in_server
from . import timing

BATCH_SIZES = (1, 64)
# About how long each model is asked in a round; at least ten requests are sent.
SECONDS = 0.5


def measure(
    values: flags.FlagValues, dataset: Dataset, rounds: int, directory: epath.Path
) -> dict:
  """Exports a DBLE and its encoder, and sends requests to both in turns.

  Args:
    values: the flags of an experiment, with scaling 'none'.
    dataset: images of its size.
    rounds: timings of each thing.
    directory: of the exports.

  Returns:
    bytes, load_seconds: of `dble` and `encoder` each.
    requests: batch size -> per_second, and p50 and p99 in seconds, of each;
      `to_encoder`, the latency of DBLE in units of the encoder's.
  """
  model = build.build_model(experiment.changed(values, method='dble'), dataset)
  model.fit_centers(dataset.train.batches(values.batch_size))
  paths = {
      'dble': export.export(model, directory / 'dble', class_names=dataset.class_names),
      'encoder': _export_encoder(model.encoder, directory / 'encoder'),
  }
  loads = timing.interleave(
      {name: functools.partial(stand_in_server.Servable, path)
       for name, path in paths.items()}, rounds)
  servables = {name: stand_in_server.Servable(path) for name, path in paths.items()}
  with (stand_in_server.serving(servables) as address,
        grpc.insecure_channel(address) as channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    requests = {
        str(size): _requests(stub, np.resize(
            dataset.test.images, [size, *dataset.image_shape]), rounds)
        for size in BATCH_SIZES}
  return {
      'bytes': {name: _size(path) for name, path in paths.items()},
      'load_seconds': {name: loads.median(name) for name in paths},
      'requests': requests,
  }


def _export_encoder(encoder, path):
  archive = keras.export.ExportArchive()
  inputs = encoder.inputs[0]
  archive.add_endpoint(
      'serving_default', lambda images: {'representation': encoder(images)},
      input_signature=[
          tf.TensorSpec([None, *inputs.shape[1:]], inputs.dtype, name='images')])
  archive.write_out(str(path), verbose=False)
  return path


def _requests(stub, images, rounds):
  """Sends these images to both models in turns, one request at a time."""

  def latency(name):
    # With all that a client does: encoding the request is part of it.
    start = time.perf_counter()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.inputs['images'].CopyFrom(tf.make_tensor_proto(images))
    stub.Predict(request)
    return time.perf_counter() - start

  names = ('dble', 'encoder')
  first = [[latency(name) for name in names] for _ in range(5)]
  count = rounds * max(10, round(SECONDS / np.median(first)))
  latencies = np.empty([count, len(names)])
  for number in range(count):
    # Every other pair runs backwards: neither always follows the other.
    for place in (0, 1) if number % 2 else (1, 0):
      latencies[number, place] = latency(names[place])
  by_name = lambda values: dict(zip(names, values.tolist()))
  return {
      'per_second': by_name(1 / latencies.mean(axis=0)),
      'p50': by_name(np.percentile(latencies, 50, axis=0)),
      'p99': by_name(np.percentile(latencies, 99, axis=0)),
      # Within pairs: whatever slows the machine down for a while affects both.
      'to_encoder': float(np.median(latencies[:, 0] / latencies[:, 1])),
  }


def _size(path):
  return sum(file.stat().st_size for file in pathlib.Path(path).rglob('*')
             if file.is_file())
