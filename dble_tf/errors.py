"""Errors whose messages are written for the user."""


class UserError(ValueError):
  """A problem the user can fix: the message says what is wrong and what to do.

  Commands print the message without a traceback and exit with a non-zero code.
  """


def first_line(error: BaseException) -> str:
  """Returns the first line of an error's message, or its type if it has none."""
  return (str(error).strip().splitlines() or [type(error).__name__])[0]
