"""Files that are whole or not there: written beside their place, then renamed."""

import contextlib
import os
import uuid
from collections.abc import Iterator

from etils import epath

_PREFIX = '.incomplete-'


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[epath.Path]:
  """Gives a temporary path that takes the place of `path` when the block ends.

  Whatever stops the block, a full disk or Ctrl-C, removes the temporary file or
  directory; what a killed process leaves has a name of its own, which
  `remove_incomplete` knows. A directory can be created this way but not replaced.

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
  """Removes a file or a whole directory, if it is there."""
  if path.is_dir():
    path.rmtree()
  else:
    path.unlink(missing_ok=True)


def remove_incomplete(directory: epath.Path) -> None:
  """Removes what killed writers left in a directory, if it is one."""
  if directory.is_dir():
    for path in directory.iterdir():
      if path.name.startswith(_PREFIX):
        remove(path)
