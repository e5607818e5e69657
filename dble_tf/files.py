"""Atomic writes: files are complete or absent, written elsewhere and then renamed."""

import contextlib
import os
import uuid
from collections.abc import Iterator

from etils import epath

_PREFIX = '.incomplete-'


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[epath.Path]:
  """Yields a temporary path that is renamed to `path` when the block ends.

  If the block raises, be it for a full disk or Ctrl-C, the temporary file or
  directory is removed and `path` is unchanged. A killed process leaves its temporary
  file behind for `remove_incomplete`. Directories can be created this way but not
  replaced.

  ```python
  with files.replacing('run/metrics.json') as temporary:
    temporary.write_text('{}')
  ```
  """
  path = epath.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.parent / f'{_PREFIX}{uuid.uuid4().hex}-{path.name}'
  try:
    yield temporary
    temporary.replace(path)
  except BaseException:
    remove(temporary)
    raise


def remove(path: epath.Path) -> None:
  """Removes a file or a directory tree, if it exists."""
  if path.is_dir():
    path.rmtree()
  else:
    path.unlink(missing_ok=True)


def remove_incomplete(directory: epath.Path) -> None:
  """Removes the temporary files of killed processes from a directory, if it exists."""
  if directory.is_dir():
    for path in directory.iterdir():
      if is_incomplete(path):
        remove(path)


def is_incomplete(path: epath.Path) -> bool:
  """Returns True for the temporary files and directories of `replacing`."""
  return path.name.startswith(_PREFIX)
