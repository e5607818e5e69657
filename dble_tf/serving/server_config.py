"""Settings of TF Serving, beside the models they are for."""

from collections.abc import Sequence

from etils import epath

from dble_tf import files

# Where `docker run -v export:/models` puts the directory.
MOUNTED = '/models'

_BATCHING = '''\
# For --enable_batching: requests that wait are answered together, and one of more
# images than max_batch_size is refused.
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
# As many threads as the machine has cores, unless num_batch_threads says otherwise.
# allowed_batch_sizes is left out: an empty request cannot be padded to them.
'''
_MONITORING = '''\
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
'''


def write(directory: epath.Path, names: Sequence[str]) -> None:
  """Writes models.config, and the other two where they are not there yet.

  Args:
    directory: holds a subdirectory a model.
    names: of the models.
  """
  entries = ''.join(
      f'  config {{\n    name: "{name}"\n    base_path: "{MOUNTED}/{name}"\n'
      '    model_platform: "tensorflow"\n  }\n' for name in names)
  _write(directory / 'models.config', f'model_config_list {{\n{entries}}}\n')
  for name, text in (('batching_parameters.txt', _BATCHING),
                     ('monitoring.txt', _MONITORING)):
    if not (directory / name).exists():  # Whoever tuned them keeps them.
      _write(directory / name, text)


def _write(path, text):
  with files.replacing(path) as temporary:
    temporary.write_text(text)
