"""Labels image files with an export, and says how sure it is.

  python -m launch.predict --server=localhost:8500 image.png folder
  python -m launch.predict --server=localhost:8501 --rest image.png
  python -m launch.predict --saved_model=runs/digits/export/digits/1 image.png

Takes PNG and JPEG files, and of folders all that are named so. The exit code is 0 where
every file got an answer, 2 where some were skipped, and 1 where nothing could be asked.
"""

import csv
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from dble_tf.serving import client
from dble_tf.errors import UserError
from launch import entry

FLAGS = flags.FLAGS

SKIPPED = 2  # The exit code where a file got no answer.
_SUFFIXES = ('.png', '.jpg', '.jpeg')
_COLUMNS = ('file', 'label', 'confidence', 'accept')
_REQUEST_BYTES = 32_000_000

flags.DEFINE_string('server', None, 'Host and port of TF Serving.')
flags.DEFINE_bool('rest', False, 'Ask --server over REST instead of gRPC.')
flags.DEFINE_string('model', 'digits', 'Its name on the server, as in models.config.')
flags.DEFINE_string('saved_model', None, 'A version of an export, to be asked without '
                    'a server.')
flags.DEFINE_enum('format', 'table', ['table', 'json', 'csv'], 'Of the output.')
flags.DEFINE_integer('files_per_request', 32, 'At most.', lower_bound=1)
flags.DEFINE_float('timeout', 60, 'Seconds to wait for an answer.', lower_bound=0.001)


def main(arguments: Sequence[str]) -> int:
  for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors='surrogateescape')  # File names need not be UTF-8.
  paths = find_files(arguments)
  ask = make_client()
  rows, skipped = [], 0
  try:
    for batch in batches(paths, FLAGS.files_per_request):
      answered, problems = ask_each(ask, batch)
      rows += answered
      skipped += len(problems)
      for path, problem in problems:
        print(f'skipped {path}: {problem}', file=sys.stderr)
      show_progress(len(rows) + skipped, len(batch), len(paths))
  finally:
    show(rows, FLAGS.format)  # What is known, also where the server went away.
  return SKIPPED if skipped else 0


def make_client() -> client.Client:
  """What the flags say is to be asked."""
  if (FLAGS.server is None) == (FLAGS.saved_model is None):
    raise UserError('Give --server=HOST:PORT or --saved_model=DIR, one of them.')
  if FLAGS.saved_model:
    return client.of_saved_model(FLAGS.saved_model)
  connect = client.over_rest if FLAGS.rest else client.over_grpc
  return connect(FLAGS.server, FLAGS.model, FLAGS.timeout)


def find_files(arguments: Sequence[str]) -> list[pathlib.Path]:
  """The files that were named, and those of folders that are named like images."""
  paths = []
  for argument in arguments:
    path = pathlib.Path(argument)
    if not path.exists():
      raise UserError(f'There is no file or folder {path}.')
    if path.is_dir():
      paths += sorted(inner for inner in path.rglob('*')
                      if inner.suffix.lower() in _SUFFIXES and inner.is_file())
    else:
      paths.append(path)
  if not paths:
    raise UserError('Name image files, or folders that hold PNG or JPEG files.')
  return paths


def batches(
    paths: Sequence[pathlib.Path], most: int
) -> Iterator[list[tuple[pathlib.Path, bytes | OSError]]]:
  """Paths with what is in them, or why it cannot be read, a request at a time."""
  batch, size = [], 0
  for path in paths:
    try:
      content = path.read_bytes()
      size += len(content)
    except OSError as error:
      content = error
    batch.append((path, content))
    if len(batch) == most or size >= _REQUEST_BYTES:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def ask_each(
    ask: client.Client, batch: Sequence[tuple[pathlib.Path, bytes | OSError]]
) -> tuple[list[dict], list[tuple[pathlib.Path, Exception]]]:
  """An answer for each file, and the files without one.

  A request fails as a whole, so files are asked about one by one where it does.
  """
  readable = [(path, content) for path, content in batch if isinstance(content, bytes)]
  problems = [(path, content) for path, content in batch
              if not isinstance(content, bytes)]
  if not readable:
    return [], problems
  paths, contents = zip(*readable)
  try:
    answers = ask(contents)
  except client.Refused as error:
    if len(readable) == 1:
      return [], [*problems, (paths[0], error)]
    rows = []
    for one in readable:
      answered, refused = ask_each(ask, [one])
      rows += answered
      problems += refused
    return rows, problems
  return [
      {'file': str(path), 'label': str(name), 'label_id': int(label),
       'confidence': float(confidence), 'accept': bool(accept)}
      for path, label, name, confidence, accept in zip(
          paths, *(answers[name] for name in client.OUTPUTS))], problems


def show_progress(done: int, newly: int, total: int) -> None:
  """A line on stderr for each tenth of the files, where they take several requests."""
  if newly < total and 10 * done // total > 10 * (done - newly) // total:
    print(f'{done:,} of {total:,} files', file=sys.stderr, flush=True)


def show(rows: Sequence[dict], form: str) -> None:
  """Prints the answers."""
  if form == 'json':
    print(json.dumps(rows, indent=2))
  elif form == 'csv':
    writer = csv.DictWriter(
        sys.stdout, _COLUMNS, extrasaction='ignore', lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
  elif rows:
    cells = [_COLUMNS, *(
        (row['file'], row['label'], f'{row["confidence"]:.4f}',
         'yes' if row['accept'] else 'no') for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for line in cells:
      print('  '.join(
          cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


if __name__ == '__main__':
  entry.run(main, takes_arguments=True)
