"""Base class of layers that remember the previous segments of a text."""

import contextlib

import keras

from deq_keras.core.checks import check_integer


class MemoryLayer(keras.layers.Layer):
    """Base class of layers that remember the last positions of previous segments.

    Calls in training and calls within `reading_segments` process consecutive segments
    of longer texts. All other calls are independent: they neither read nor write the
    memory.

    Args:
        length: Non-negative integer. Number of positions to remember. 0 disables the
            memory.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.length = length
        self._is_reading = False
        self.supports_masking = True

    @property
    def length(self):
        return self._length

    @length.setter
    def length(self, length):
        self._length = check_integer("length", length, minimum=0)
        # XLA cannot compile a memory that changes its shape as it fills.
        self.supports_jit = self._length == 0

    @contextlib.contextmanager
    def reading_segments(self):
        """Returns a scope in which every call continues the previous segment."""
        before, self._is_reading = self._is_reading, True
        try:
            yield
        finally:
            self._is_reading = before

    def _remembers(self, training):
        return self.length > 0 and bool(training or self._is_reading)
