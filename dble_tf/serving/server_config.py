"""Configuration files of TF Serving, written beside the models."""

import re
import warnings
from collections.abc import Iterable

from etils import epath

from dble_tf import files

# Where `docker run -v export:/models` mounts the directory.
MOUNTED = '/models'

_BATCHING = '''\
# Read if TF Serving runs with enable_batching: requests that wait at the same time are
# answered together, and a request of more than max_batch_size images is refused.
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
# num_batch_threads defaults to the number of cores. allowed_batch_sizes is left out
# because an empty request cannot be padded to them.
'''
_MONITORING = '''\
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
'''

_TOKEN = re.compile(r'''
    (?P<ignored> \s+ | \#[^\n]* | [:,;\[\]] )
  | (?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
  | (?P<open> [{<] )
  | (?P<close> [}>] )
  | (?P<word> [\w.+-]+ )
  | (?P<unknown> . )
''', re.VERBOSE)


def write(directory: epath.Path, name: str, names: Iterable[str]) -> None:
  """Writes the files that do not exist and adds a model to models.config.

  A models.config that lists the model stays as it is; otherwise an entry is inserted
  and everything else (version policies, labels, comments) is kept. One that cannot be
  parsed is left unchanged, with a warning.

  Args:
    directory: holds one subdirectory per model.
    name: of the model to add.
    names: of all models in `directory`, for a new models.config.
  """
  path = directory / 'models.config'
  if path.exists():
    _add_model(path, name)
  else:
    entries = ''.join(map(_entry, names))
    _write(path, f'model_config_list {{\n{entries}}}\n'.encode())
  for file_name, text in (('batching_parameters.txt', _BATCHING),
                          ('monitoring.txt', _MONITORING)):
    if not (directory / file_name).exists():
      _write(directory / file_name, text.encode())


def _add_model(path, name):
  # In bytes, so that line endings are kept.
  content = path.read_bytes()
  try:
    text = content.decode()
    listed, end = _parse(text)
  except ValueError:
    warnings.warn(
        f'{path} cannot be parsed and was left unchanged. Unless it lists the model '
        f'already, add this to its model_config_list:\n{_entry(name)}', stacklevel=4)
    return
  if name in listed:
    return
  line = text.rfind('\n', 0, end) + 1
  is_alone = not text[line:end].strip()  # The closing brace has a line of its own.
  at, entry = (line, _entry(name)) if is_alone else (end, f'\n{_entry(name)}')
  _write(path, f'{text[:at]}{entry}{text[at:]}'.encode())


def _entry(name):
  return (f'  config {{\n    name: "{name}"\n    base_path: "{MOUNTED}/{name}"\n'
          '    model_platform: "tensorflow"\n  }\n')


def _parse(text):
  """Finds the models' names and the end of model_config_list in a models.config.

  Knows as much of protobuf's text format as that takes: tensorflow-serving-api, which
  has the message's definition, may not be installed.

  Returns:
    The names, and the index of the list's closing brace; raises a `ValueError` if there
    is no such list.
  """
  field, fields, braces, names, ends = None, [], [], [], []
  for token in _TOKEN.finditer(text):
    kind, value = token.lastgroup, token[0]
    if kind == 'word':
      field = value
    elif kind == 'string':
      if fields == ['model_config_list', 'config'] and field == 'name':
        names.append(value[1:-1])
    elif kind == 'open':
      fields.append(field)
      braces.append(value)
    elif kind == 'close':
      if not braces or braces.pop() + value not in ('{}', '<>'):
        raise ValueError('unbalanced braces')
      if fields == ['model_config_list']:
        ends.append(token.start())
      field = fields.pop()  # Of a list's next item, too.
    elif kind == 'unknown':
      raise ValueError(f'unexpected {value}')
  if braces or len(ends) != 1:
    raise ValueError('not one model_config_list')
  return names, ends[0]


def _write(path, content):
  with files.replacing(path) as temporary:
    temporary.write_bytes(content)
