"""Saved models as other versions would have written them."""

import json
import os
import zipfile
from collections.abc import Callable


def edit_config(path: str | os.PathLike, edit: Callable[[dict], None]) -> None:
  """Changes config.json within a .keras file."""
  with zipfile.ZipFile(path) as archive:
    content = {name: archive.read(name) for name in archive.namelist()}
  config = json.loads(content['config.json'])
  edit(config)
  content['config.json'] = json.dumps(config).encode()
  with zipfile.ZipFile(path, 'w') as archive:
    for name, part in content.items():
      archive.writestr(name, part)


def make_older(path: str | os.PathLike) -> None:
  """Gives a saved model arguments that it no longer takes."""
  edit_config(path, lambda model: model['config'].update(
      normalisation=['errors'], chosen=0))
