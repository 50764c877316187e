"""The error that a user can cause and repair."""


class InputError(ValueError):
    """A config, a work directory or a data directory that cannot be used.

    The command line prints the message without a traceback.
    """
