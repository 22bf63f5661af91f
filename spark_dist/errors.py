"""Errors that a person can act on: the command line prints them as one line."""


class UserError(Exception):
    """A mistake in what the user asked for. The message names the field, the value and the fix.

    Not a ValueError: libraries that catch those (pydantic, tyro) must let it through unchanged.
    """


class RunFailed(RuntimeError):
    """A run that started and cannot go on. The message names the cause, the step and what to do."""
