"""Models that read texts segment by segment, a batch after the other."""

import contextlib


class SegmentReading:
    """Mixin of models whose `segment_layer` remembers the segments before.

    `fit` and `evaluate` read consecutive batches as consecutive segments of the same
    texts; every epoch and evaluation begins with an empty memory. All other calls stand
    alone, unless they are made within `reading_segments`.
    """

    def reset_memory(self):
        """Forgets the segments before: the next call begins new texts."""
        self.segment_layer.reset_memory()

    def reset_metrics(self):
        """Resets metrics and memory. Keras calls this at the start of every epoch and
        evaluation."""
        super().reset_metrics()
        self.reset_memory()

    def test_step(self, data):
        with self.segment_layer.reading_segments():
            return super().test_step(data)

    @contextlib.contextmanager
    def reading_segments(self):
        """A scope in which calls and `predict` are segments that continue the ones
        before; it begins with an empty memory."""
        self.reset_memory()
        self.predict_function = None  # It is another one within.
        try:
            with self.segment_layer.reading_segments():
                yield
        finally:
            self.predict_function = None
