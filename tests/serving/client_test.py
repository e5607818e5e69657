import base64
import json
import socket
import sys
import urllib.request
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from dble_tf.errors import UserError
from dble_tf.serving import client
from dble_tf.serving.export import export
from launch.benchmarks import stand_in_server
from tests import rest_server
from tests import tiny

FILES = tiny.as_png(tiny.IMAGES)


@pytest.fixture(scope='module')
def model():
  return tiny.model()


@pytest.fixture(scope='module')
def expected(model):
  answers = tiny.expected_answers(model, tiny.median_confidence(model))
  answers['label_name'] = np.array([name.decode() for name in answers['label_name']])
  return {name: answers[name] for name in client.OUTPUTS}


@pytest.fixture(scope='module')
def saved_model(model, tmp_path_factory):
  return export(
      model, tmp_path_factory.mktemp('export'), name='tiny',
      class_names=tiny.CLASS_NAMES, threshold=tiny.median_confidence(model))


@pytest.fixture(scope='module')
def addresses(saved_model):
  servables = {'tiny': stand_in_server.Servable(saved_model)}
  with (stand_in_server.serving(servables) as grpc_address,
        rest_server.serving(servables) as rest_address):
    yield {'grpc': grpc_address, 'rest': rest_address}


CONNECT = {'grpc': client.over_grpc, 'rest': client.over_rest}


@pytest.fixture(params=['grpc', 'rest', 'saved_model'])
def ask(request, addresses, saved_model):
  if request.param == 'saved_model':
    return client.of_saved_model(saved_model)
  return CONNECT[request.param](addresses[request.param], 'tiny', 30)


def test_files_get_the_models_answers(ask, expected):
  answers = ask(FILES)
  tiny.assert_same(answers, expected)
  assert answers['label_name'][0] in tiny.CLASS_NAMES  # Text, not bytes.
  assert answers['accept'].dtype == np.bool_


def test_many_threads_with_batches_of_mixed_sizes_get_their_own_answers(ask, expected):
  rng = np.random.default_rng(0)
  batches = [rng.integers(9, size=rng.integers(1, 20)) for _ in range(40)]
  with futures.ThreadPoolExecutor(8) as pool:
    results = pool.map(lambda rows: ask([FILES[row] for row in rows]), batches)
    for rows, answers in zip(batches, results):
      tiny.assert_same(answers, expected, rows)


@pytest.mark.parametrize('file, message', [
    (b'hello', r'PNG or JPEG.*\[5\]'),
    (FILES[0][:-4], 'Invalid PNG')], ids=['letter', 'truncated'])
def test_a_file_that_is_not_an_image_is_refused_with_the_reason_only(
    ask, expected, file, message):
  with pytest.raises(client.Refused, match=message) as refused:
    ask([FILES[0], file])
  assert '{{' not in str(refused.value) and '\n' not in str(refused.value)
  tiny.assert_same(ask(FILES[:1]), expected, slice(0, 1))


def test_failed_requests_do_not_affect_concurrent_ones(ask, expected):
  def answer(number):
    if number % 3:
      return ask(FILES)
    with pytest.raises(client.Refused):
      ask([*FILES, b'hello'])

  with futures.ThreadPoolExecutor(8) as pool:
    for number, answers in enumerate(pool.map(answer, range(30))):
      if number % 3:
        tiny.assert_same(answers, expected)


@pytest.mark.parametrize('kind', ['grpc', 'rest'])
def test_a_model_that_is_not_served_is_named(kind, addresses):
  with pytest.raises(
      client.Unavailable, match="'other'.*Servable not found.*models.config"):
    CONNECT[kind](addresses[kind], 'other', 30)(FILES)


@pytest.mark.parametrize('kind', ['grpc', 'rest'])
def test_a_server_that_is_not_there_is_named(kind):
  with socket.socket() as taken:  # Bound but not listening.
    taken.bind(('localhost', 0))
    address = f'localhost:{taken.getsockname()[1]}'
    with pytest.raises(
        client.Unavailable, match=f'{address} did not answer.*8501 for REST'):
      CONNECT[kind](address, 'tiny', 5)(FILES)


def test_a_directory_without_an_export_is_refused(tmp_path):
  with pytest.raises(UserError, match='no SavedModel with the signature serving_bytes'):
    client.of_saved_model(tmp_path)
  module = tf.Module()
  module.serve = tf.function(
      lambda x: {'y': x}, input_signature=[tf.TensorSpec([None], tf.string)])
  tf.saved_model.save(
      module, str(tmp_path), signatures={'serving_default': module.serve})
  with pytest.raises(UserError, match='no SavedModel with the signature serving_bytes'):
    client.of_saved_model(tmp_path)


def test_without_the_serving_api_grpc_says_what_to_do(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow_serving.apis', None)
  with pytest.raises(
      UserError, match='pip install tensorflow-serving-api, or use REST'):
    client.over_grpc('localhost:1', 'tiny', 1)


# TF Serving's JSON formats, of which the client uses one

def post(address, body):
  request = urllib.request.Request(
      f'http://{address}/v1/models/tiny:predict', json.dumps(body).encode())
  with urllib.request.urlopen(request) as response:
    return json.load(response)


@pytest.mark.parametrize('signature, name, values', [
    ('serving_default', 'images', tiny.IMAGES.tolist()),
    ('serving_bytes', 'image_bytes',
     [{'b64': base64.b64encode(file).decode()} for file in FILES])])
def test_rows_and_columns_get_the_same_answers(
    signature, name, values, addresses, expected):
  address = addresses['rest']
  rows = post(address, {
      'signature_name': signature, 'instances': values})['predictions']
  named = post(address, {'signature_name': signature, 'instances': [
      {name: value} for value in values]})['predictions']
  columns = post(address, {
      'signature_name': signature, 'inputs': {name: values}})['outputs']
  unnamed = post(address, {'signature_name': signature, 'inputs': values})['outputs']
  assert rows == named and columns == unnamed
  for name in client.OUTPUTS:
    assert [row[name] for row in rows] == columns[name]
  tiny.assert_same(
      {name: np.array(columns[name]) for name in client.OUTPUTS}, expected)


def test_a_single_output_has_no_name_in_json(addresses, model):
  h = model.encoder.predict(tiny.IMAGES, verbose=0)
  for key, answer in (('instances', 'predictions'), ('inputs', 'outputs')):
    result = post(addresses['rest'], {
        'signature_name': 'embed', key: tiny.IMAGES.tolist()})[answer]
    np.testing.assert_allclose(result, h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('way', ['grpc', 'rest'])
def test_a_model_without_the_signature_is_not_blamed_on_the_files(way, tmp_path):
  module = tf.Module()
  module.serve = tf.function(
      lambda x: {'y': x}, [tf.TensorSpec([None], tf.float32, 'x')])
  tf.saved_model.save(
      module, str(tmp_path), signatures={'serving_default': module.serve})
  servables = {'other': stand_in_server.Servable(tmp_path)}
  server = {'grpc': stand_in_server, 'rest': rest_server}[way]
  with server.serving(servables) as address:
    with pytest.raises(client.Unavailable, match='signature'):
      CONNECT[way](address, 'other', 30)(FILES)
