"""Runs a command by its name.

  python -m launch train --flagfile=digits

is `python -m launch.train --flagfile=digits`. As a script, which is what Bazel makes of
a binary's main, it works as well.
"""

import importlib
import pathlib
import pkgutil
import sys

_FOLDER = pathlib.Path(__file__).parent
_PACKAGE = __package__ or _FOLDER.name


def _commands() -> list[str]:
  """The modules beside this one, of which each is a command."""
  return sorted(
      module.name for module in pkgutil.iter_modules([str(_FOLDER)])
      if not module.ispkg and module.name != '__main__')


def main() -> None:
  if not __package__:
    sys.path[0] = str(_FOLDER.parent)  # A script's own folder is there.
  name = sys.argv[1] if len(sys.argv) > 1 else ''
  usage = (
      f'python -m {_PACKAGE} COMMAND [--help] [flags], where COMMAND is one of '
      f'{", ".join(_commands())}')
  if name in ('-h', '-help', '--help'):
    print(usage)
    return
  if name not in _commands():
    problem = f'no command {name!r}' if name else 'no command'
    sys.exit(f'error: {problem}: run {usage}.')
  del sys.argv[1]
  importlib.import_module(f'{_PACKAGE}.{name}').command()


if __name__ == '__main__':
  main()
