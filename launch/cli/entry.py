"""Start and end of every command: flags, help, errors, exit codes.

Flags are parsed before anything heavy is imported: a command imports TensorFlow, and
what needs it, inside its `main`.
"""

import errno
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from absl import flags

from . import flagfiles
from . import groups
from . import invocation
from . import preemption

INTERRUPTED = 130  # The exit code after Ctrl-C.
_HELP = {'--help', '-help', '-h', '--helpshort', '--helpfull'}

_FREE_SPACE = 'free some space, then the same command continues'
_WRITE_ELSEWHERE = 'give a directory that can be written'
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE, errno.EDQUOT: _FREE_SPACE, errno.EFBIG: _FREE_SPACE,
    errno.EROFS: _WRITE_ELSEWHERE, errno.EACCES: _WRITE_ELSEWHERE,
    errno.EPERM: _WRITE_ELSEWHERE}


class CommandError(Exception):
  """A mistake that the user can fix, found without the library.

  Its counterpart in the library is `dble_tf.errors.UserError`.
  """


def run(main: Callable[..., int | None], takes_arguments: bool = False) -> None:
  """Parses the flags, runs `main` and exits.

  The exit code is that of `main`, 1 after an error, `INTERRUPTED` after Ctrl-C, or
  `preemption.EXIT_CODE` after SIGTERM.

  Args:
    main: returns an exit code, or None for 0.
    takes_arguments: pass `main` the arguments that are not flags, as a list; without
      it such arguments are an error.
  """
  if not _HELP.isdisjoint(sys.argv[1:]):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` is no error.
    print(_help(main), end='')
    sys.exit(0)
  try:
    arguments = flags.FLAGS([sys.argv[0], *flagfiles.expand(sys.argv[1:])])[1:]
  except flags.Error as error:
    sys.exit(_fail(error))
  if arguments and not takes_arguments:
    sys.exit(_fail(f'Unexpected arguments: {" ".join(arguments)}'))
  faulthandler.enable()
  sys.exit(guarded(main, *([arguments] if takes_arguments else [])))


def guarded(main: Callable[..., int | None], *arguments: Sequence[str]) -> int | None:
  """Runs `main` and returns the exit code; user errors are printed, bugs raised."""
  try:
    with preemption.PREEMPTION.handling():
      _quiet_logging()
      return main(*arguments)
  except KeyboardInterrupt:
    print('\ninterrupted', file=sys.stderr)
    return INTERRUPTED
  except preemption.Preempted:
    print('\nterminated: the same command continues', file=sys.stderr)
    return preemption.EXIT_CODE
  except Exception as error:
    message = _user_message(error)
    if message is None:
      raise
    return _fail(message)


def _help(main):
  document = invocation.localized(sys.modules[main.__module__].__doc__ or '').strip()
  text = f'{document}\n\n{groups.describe(flags.FLAGS)}'
  if 'dataset' in flags.FLAGS:
    text += (
        '\n--flagfile=NAME reads the flags of an experiment, --flagfile=PATH those of '
        f'a file.\nExperiments: {", ".join(flagfiles.experiments())}\n')
  return text


def _quiet_logging():
  from absl import logging as absl_logging  # Defines flags that are not for users.
  absl_logging.use_absl_handler()
  absl_logging.set_verbosity(absl_logging.WARNING)
  logging.getLogger('tensorflow').setLevel(logging.ERROR)


def _fail(message):
  print(f'error: {message}', file=sys.stderr)
  return 1


def _user_message(error):
  """What to tell the user; None for a bug, which keeps its traceback."""
  if isinstance(error, CommandError):
    return str(error)
  import tensorflow as tf

  from dble_tf.errors import UserError
  if isinstance(error, UserError):
    return str(error)
  if isinstance(error, OSError):
    code = error.errno
  elif isinstance(error, tf.errors.OpError):
    # TensorFlow's own exceptions quote the operating system.
    code = next((code for code in _REMEDIES if os.strerror(code) in str(error)), None)
    if code is None:
      return None
  else:
    return None
  return f'{error}: {_REMEDIES[code]}.' if code in _REMEDIES else str(error)
