import keras


class SegmentLayer(keras.layers.Layer):
    """Base of layers that remember the last positions of the segments before.

    Args:
        length: Integer >= 0. Positions to remember; 0 for no memory.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.length = length

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
