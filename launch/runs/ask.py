"""Asks an export about image files, and prints the answers."""

import csv
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from dble_tf.errors import UserError
from dble_tf.serving import client

SKIPPED = 2  # The exit code if some file got no answer.
_SUFFIXES = ('.png', '.jpg', '.jpeg')
_COLUMNS = ('file', 'label', 'confidence', 'accept')
_REQUEST_BYTES = 32_000_000


def run(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  """Asks about all files and returns the exit code.

  Args:
    values: the flags of the command predict.
    arguments: paths of files and folders.
  """
  for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors='surrogateescape')  # File names need not be UTF-8.
  paths = find_files(arguments)
  ask = make_client(values)
  rows, skipped = [], 0
  try:
    for batch in batches(paths, values.files_per_request):
      answered, problems = ask_each(ask, batch)
      rows += answered
      skipped += len(problems)
      for path, problem in problems:
        print(f'skipped {path}: {problem}', file=sys.stderr)
      show_progress(len(rows) + skipped, len(batch), len(paths))
  finally:
    show(rows, values.format)  # The answers so far, even if the server went away.
  return SKIPPED if skipped else 0


def make_client(values: flags.FlagValues) -> client.Client:
  """The client that the flags describe."""
  if values.saved_model:
    return client.of_saved_model(values.saved_model)
  connect = client.over_rest if values.rest else client.over_grpc
  return connect(values.server, values.model, values.timeout)


def find_files(arguments: Sequence[str]) -> list[pathlib.Path]:
  """The files among the arguments, and the image files in folders."""
  paths = []
  for argument in arguments:
    path = pathlib.Path(argument)
    if not path.exists():
      raise UserError(f'No file or folder {path}.')
    if path.is_dir():
      paths += sorted(inner for inner in path.rglob('*')
                      if inner.suffix.lower() in _SUFFIXES and inner.is_file())
    else:
      paths.append(path)
  if not paths:
    raise UserError('Give image files, or folders with PNG or JPEG files.')
  return paths


def batches(
    paths: Sequence[pathlib.Path], most: int
) -> Iterator[list[tuple[pathlib.Path, bytes | OSError]]]:
  """Paths with their content, or the error of reading it, one request at a time."""
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
  """The answers, and the files without one, each with its error.

  A request fails as a whole, so after a failure each file is asked about alone.
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
  """Prints a line per tenth of the files to stderr, if they take several requests."""
  if newly < total and 10 * done // total > 10 * (done - newly) // total:
    print(f'{done:,} of {total:,} files', file=sys.stderr, flush=True)


def show(rows: Sequence[dict], form: str) -> None:
  """Prints the answers as a table, JSON or CSV."""
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
