"""The one exception that speaks to the user."""


class UserError(ValueError):
  """Something the user can mend: the message says what is wrong and what to do.

  Entry points print the message alone and exit with a non-zero code.
  """
