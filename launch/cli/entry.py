"""How every entry point starts and how it fails."""

import errno
import os
import sys
from collections.abc import Callable

import tensorflow as tf
from absl import app
from absl import logging

from dble_tf.errors import UserError
from launch import preemption


INTERRUPTED = 130  # The exit code after Ctrl-C.

_MAKE_ROOM = 'make room, then the same command goes on'
_BE_ELSEWHERE = 'give a directory that can be written'
_REMEDIES = {
    errno.ENOSPC: _MAKE_ROOM, errno.EDQUOT: _MAKE_ROOM, errno.EFBIG: _MAKE_ROOM,
    errno.EROFS: _BE_ELSEWHERE, errno.EACCES: _BE_ELSEWHERE, errno.EPERM: _BE_ELSEWHERE}


def run(main: Callable[..., int | None], takes_arguments: bool = False) -> None:
  """Parses the flags, runs `main`, and tells errors to people.

  A mistake that the user can mend is printed without a traceback; the exit code is 1,
  `INTERRUPTED` after Ctrl-C, or `preemption.EXIT_CODE` after SIGTERM.

  Args:
    main: gives an exit code, or None for 0.
    takes_arguments: whether it is given what is no flag, as a list; else there must be
      nothing of that kind.
  """

  def guarded(argv):
    arguments = argv[1:]
    if arguments and not takes_arguments:
      raise app.UsageError(f'Unexpected arguments: {" ".join(arguments)}')
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel('ERROR')
    try:
      with preemption.PREEMPTION.handling():
        return main(arguments) if takes_arguments else main()
    except UserError as error:
      print(f'error: {error}', file=sys.stderr)
      return 1
    except (OSError, tf.errors.OpError) as error:
      problem = _file_problem(error)
      if problem is None:
        raise
      print(f'error: {problem}', file=sys.stderr)
      return 1
    except KeyboardInterrupt:
      print('\ninterrupted', file=sys.stderr)
      return INTERRUPTED
    except preemption.Preempted:
      print('\nasked to end: the same command continues', file=sys.stderr)
      return preemption.EXIT_CODE

  app.run(guarded)


def _file_problem(error):
  """What a failure to read or write says to people; None if it is another failure."""
  if isinstance(error, OSError):
    code = error.errno
  else:  # TensorFlow has errors of its own, with the words of the operating system.
    code = next((code for code in _REMEDIES if os.strerror(code) in str(error)), None)
    if code is None:
      return None
  return f'{error}: {_REMEDIES[code]}.' if code in _REMEDIES else str(error)
