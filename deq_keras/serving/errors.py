"""What can go wrong with an export."""


class ExportError(RuntimeError):
    """A model that cannot be exported, or whose export gives other answers.

    The message says why and what to do. No file is left behind.
    """
