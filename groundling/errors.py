"""The one kind of error a user can mend."""


class InputError(ValueError):
    """Something given by the user is wrong: one line that names the file, line or field, and what was expected."""
