"""How every entry point starts and how it fails."""

import sys
from collections.abc import Callable

import tensorflow as tf
from absl import app
from absl import logging

from dble_tf.errors import UserError
from launch import preemption


INTERRUPTED = 130  # The exit code after Ctrl-C.


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
    except (UserError, OSError) as error:
      print(f'error: {error}', file=sys.stderr)
      return 1
    except KeyboardInterrupt:
      print('\ninterrupted', file=sys.stderr)
      return INTERRUPTED
    except preemption.Preempted:
      print('\nasked to end: the same command continues', file=sys.stderr)
      return preemption.EXIT_CODE
    return 0

  app.run(guarded)
