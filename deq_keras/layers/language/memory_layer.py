"""What layers have in common that remember the segments of a text they have read."""

import contextlib

import keras

from deq_keras.core.checks import check_integer


class MemoryLayer(keras.layers.Layer):
    """Base of layers that remember the last positions of the segments before.

    Only calls in training, and calls within `reading_segments`, are segments of longer
    texts, which come one after the other. All others stand alone: they neither see a
    memory nor leave one.

    Args:
        length: Integer >= 0. Positions to remember; 0 for no memory.
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
        """A scope in which every call is a segment that continues the one before."""
        before, self._is_reading = self._is_reading, True
        try:
            yield
        finally:
            self._is_reading = before

    def _remembers(self, training):
        return self.length > 0 and bool(training or self._is_reading)
