"""The one exception that speaks to the user."""


class UserError(ValueError):
  """Something the user can mend: the message says what is wrong and what to do.

  Entry points print the message alone and exit with a non-zero code.
  """


def first_line(error: BaseException) -> str:
  """What an error of another library says first, to be told in a `UserError`."""
  return (str(error).strip().splitlines() or [type(error).__name__])[0]
