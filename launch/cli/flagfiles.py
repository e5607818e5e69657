"""Flag files: the package's own experiments are found by name from any directory."""

import pathlib
from collections.abc import Iterable, Iterator

from absl import flags

_SUFFIX = '.flags'
_EXPERIMENTS = pathlib.Path(__file__).parents[1]


def experiments() -> list[str]:
  """Names of the flag files that come with the package."""
  return sorted(path.stem for path in _EXPERIMENTS.glob(f'*{_SUFFIX}'))


def find(name: str) -> pathlib.Path:
  """The flag file of this path or, where there is none, of this experiment.

  Args:
    name: a path, or an experiment as `cifar10`, `cifar10.flags` or
      `launch/cifar10.flags`.
  """
  path = pathlib.Path(name).expanduser()
  if path.is_file():
    return path
  if path.parent in (pathlib.Path('.'), pathlib.Path('launch')):
    experiment = path.name.removesuffix(_SUFFIX)
    if experiment in experiments():
      return _EXPERIMENTS / f'{experiment}{_SUFFIX}'
  raise flags.CantOpenFlagFileError(
      f'No flag file {name}: give a path, or one of the experiments '
      f'{", ".join(experiments())}.')


def expand(
    arguments: Iterable[str], including: tuple[pathlib.Path, ...] = ()
) -> list[str]:
  """Replaces each --flagfile by the lines of its file, which may include others.

  Args:
    arguments: of a command, without its name.
    including: the files that these arguments were read from, outermost first.
  """
  arguments, expanded = iter(arguments), []
  for argument in arguments:
    if argument == '--':  # What follows is no flag.
      return [*expanded, argument, *arguments]
    flag, equals, name = argument.partition('=')
    if flag not in ('--flagfile', '-flagfile'):
      expanded.append(argument)
      continue
    path = find(name if equals else next(arguments, ''))
    if path in including:
      raise flags.CantOpenFlagFileError(f'{path} includes itself.')
    expanded += expand(_lines(path), (*including, path))
  return expanded


def _lines(path: pathlib.Path) -> Iterator[str]:
  try:
    text = path.read_text()
  except (OSError, UnicodeDecodeError) as error:
    raise flags.CantOpenFlagFileError(f'{path} cannot be read: {error}') from error
  for line in map(str.strip, text.splitlines()):
    if line and not line.startswith(('#', '//')):
      yield line
