import contextlib

import keras


class SegmentLayer(keras.layers.Layer):
    """Base of layers that remember the last positions of the segments before.

    Only calls in training, and calls within `reading_segments`, are segments of longer
    texts. All others stand alone: they neither see a memory nor leave one.

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
        if not isinstance(length, int) or length < 0:
            raise ValueError(
                "Argument `length` must be an integer, 0 or more. Received: "
                f"length={length!r}"
            )
        self._length = length
        self.supports_jit = length == 0

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
