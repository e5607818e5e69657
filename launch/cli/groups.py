"""Flags in groups, as --help shows them."""

import contextlib
import textwrap
import weakref
from collections.abc import Iterator

from absl import flags

# The flags of each `FlagValues`: group -> names, both in the order of definition.
_GROUPS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_WIDTH = 88


@contextlib.contextmanager
def group(title: str, values: flags.FlagValues) -> Iterator[None]:
  """Puts the flags that are defined inside the block into a group."""
  before = set(values)
  yield
  names = _GROUPS.setdefault(values, {}).setdefault(title, [])
  names += [name for name in values if name not in before]


def describe(values: flags.FlagValues) -> str:
  """The flags of all groups with their defaults, ready to print."""
  return '\n'.join(
      f'{title}:\n' + ''.join(_describe_flag(values[name]) for name in names)
      for title, names in _GROUPS.get(values, {}).items())


def _describe_flag(flag):
  name = f'[no]{flag.name}' if flag.boolean else flag.name
  notes = [flag.parser.syntactic_help] if flag.parser.syntactic_help else []
  if flag.default is not None:
    notes.append(f'default: {flag.default_as_str.strip(chr(39)) or "none"}')
  heading = f'  --{name}' + (f'  ({"; ".join(notes)})' if notes else '')
  text = flag.help.replace('|', ' | ')  # Long lists of choices wrap.
  body = textwrap.fill(
      ' '.join(text.split()), _WIDTH, initial_indent=6 * ' ', subsequent_indent=6 * ' ',
      break_on_hyphens=False)
  return f'{heading}\n{body}\n'
