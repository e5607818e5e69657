"""How every entry point starts and how it fails."""

import sys
from collections.abc import Callable

import tensorflow as tf
from absl import app
from absl import logging

from dble_tf.errors import UserError


INTERRUPTED = 130  # The exit code after Ctrl-C.


def run(main: Callable[..., int | None], takes_arguments: bool = False) -> None:
  """Parses the flags, runs `main`, and tells errors to people.

  A mistake that the user can mend is printed without a traceback; the exit code is 1,
  or `INTERRUPTED` after Ctrl-C.

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
      return main(arguments) if takes_arguments else main()
    except (UserError, OSError) as error:
      print(f'error: {error}', file=sys.stderr)
      return 1
    except KeyboardInterrupt:
      print('\ninterrupted', file=sys.stderr)
      return INTERRUPTED

  app.run(guarded)
