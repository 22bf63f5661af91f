"""The one exception of this wing."""


class DataError(ValueError):
    """Data, or a setting about data, that cannot be used.

    The message is one line that names the field or file, the value or offset, and the fix.
    """


class WorkerDied(RuntimeError):
    """A process of `prepare` ended without a word. What it finished is kept."""
