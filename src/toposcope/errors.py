"""The one error type of the library."""


class ToposcopeError(Exception):
    """Something the user can mend: one line that names the thing at fault and the mend."""
