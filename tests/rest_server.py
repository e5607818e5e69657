"""A stand-in for TF Serving's REST interface, written after its documentation."""

import base64
import contextlib
import http.server
import json
import re
import threading

import numpy as np
import tensorflow as tf


def _decoded(value):
  """Converts JSON to lists of numbers and bytes."""
  if isinstance(value, dict):
    assert set(value) == {'b64'}
    return base64.b64decode(value['b64'])
  return [_decoded(item) for item in value] if isinstance(value, list) else value


def _tensor(value, info):
  dtype = tf.as_dtype(info.dtype)
  value = _decoded(value)
  return np.array(value, object if dtype == tf.string else dtype.as_numpy_dtype)


def _json(values):
  if values.dtype == object:
    return [value.decode() for value in values.tolist()]
  return values.tolist()


def predict(servable, body):
  """Answers a predict request in the format it came in: rows or columns."""
  name = body.get('signature_name', 'serving_default')
  takes = servable.signatures[name].inputs
  if 'instances' in body:
    rows = body['instances']
    if isinstance(rows[0], dict) and 'b64' not in rows[0]:
      columns = {key: [row[key] for row in rows] for key in rows[0]}
    else:  # The name may be left out if there is a single input.
      columns = dict.fromkeys(takes, rows)
  elif isinstance(body['inputs'], dict) and 'b64' not in body['inputs']:
    columns = body['inputs']
  else:
    columns = dict.fromkeys(takes, body['inputs'])
  outputs = servable.run(
      name, {key: _tensor(value, takes[key]) for key, value in columns.items()})
  outputs = {key: _json(values) for key, values in outputs.items()}
  if len(outputs) == 1:  # A single output is sent without its name.
    outputs, = outputs.values()
    return {'predictions' if 'instances' in body else 'outputs': outputs}
  if 'instances' in body:
    return {'predictions': [dict(zip(outputs, row)) for row in zip(*outputs.values())]}
  return {'outputs': outputs}


@contextlib.contextmanager
def serving(servables):
  """Yields the loopback address of a server that runs until the block ends."""

  class Handler(http.server.BaseHTTPRequestHandler):

    def do_POST(self):
      body = self.rfile.read(int(self.headers['Content-Length']))
      match = re.fullmatch(r'/v1/models/([^/:]+)(/versions/\d+)?:predict', self.path)
      if not match or match[1] not in servables:
        return self.reply(404, {
            'error': f'Servable not found for request: Latest({self.path})'})
      try:
        return self.reply(200, predict(servables[match[1]], json.loads(body)))
      except tf.errors.InvalidArgumentError as error:
        return self.reply(400, {'error': error.message})
      except KeyError as error:
        return self.reply(400, {
            'error': f'Serving signature name: {error} not found in signature def'})

    def reply(self, code, content):
      content = json.dumps(content).encode()
      self.send_response(code)
      self.send_header('Content-Type', 'application/json')
      self.send_header('Content-Length', str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    def log_message(self, *args):
      pass

  server = http.server.ThreadingHTTPServer(('localhost', 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f'localhost:{server.server_port}'
  finally:
    server.shutdown()
    server.server_close()
