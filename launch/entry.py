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


def run(main: Callable[[], None]) -> None:
  """Parses the flags, runs `main`, and tells errors to people.

  A mistake that the user can mend is printed without a traceback; the exit code is 1,
  or `INTERRUPTED` after Ctrl-C, or `preemption.EXIT_CODE` after SIGTERM.
  """

  def guarded(argv):
    if len(argv) > 1:
      raise app.UsageError(f'Unexpected arguments: {" ".join(argv[1:])}')
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel('ERROR')
    try:
      with preemption.PREEMPTION.handling():
        main()
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
    return 0

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
