"""Commands as processes and as users type them, in the checkout and installed."""

import re
import sys

_PACKAGE = __package__.partition('.')[0]  # launch, or dble_launch once installed.
_IN_CHECKOUT = _PACKAGE == 'launch'


def process(module: str) -> list[str]:
  """What starts a module of this package, such as 'train', as a process."""
  return [sys.executable, '-m', f'{_PACKAGE}.{module}']


def typed(command: str) -> str:
  """What a user types to run a command, such as 'train'."""
  if _IN_CHECKOUT:
    return f'python -m launch.{command}'
  return f'dble-{command.replace("_", "-")}'


def localized(text: str) -> str:
  """A text with the commands of the checkout in it, as they are typed here."""
  return re.sub(
      r'python -m launch\.(\w+)', lambda command: typed(command[1]), text)
