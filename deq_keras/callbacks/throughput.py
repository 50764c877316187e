"""How many samples a training solves in a second."""

import time

from deq_keras.core import replicas


class Throughput:
    """Counts the samples of an epoch, from its first step to its last.

    The first step is left out: it may compile. The layer's own metric counts, so that
    the last batch may be smaller and nobody has to name the size of the others.

    Args:
        layer: `DEQ` layer.

    Attributes:
        rate: Float. Samples a second of the epoch that `end` has ended; `None` if it
            had one step only.
    """

    def __init__(self, layer):
        name = f"{layer.name}_evaluations"
        self._metric = next(m for m in layer.metrics if m.name == name)
        self.begin()

    def begin(self):
        """Begins an epoch."""
        self.rate = self._first = self._last = self._first_count = None
        self._is_open = True

    def step(self):
        """Records the end of a step."""
        if self._first is None:
            self._first_count = _value(self._metric.count)  # Waits for the step.
            self._first = time.perf_counter()
        self._last = time.perf_counter()

    def end(self):
        """Ends the epoch, while the metric still has its count; once is enough."""
        if not self._is_open or self._first is None:
            return
        self._is_open = False
        count = _value(self._metric.count) - self._first_count
        if count > 0:
            self.rate = count / (self._last - self._first)


def _value(count):
    """Returns the count of all replicas, assuming that all workers count alike.

    Asking the others would involve all workers, but callbacks may run on one alone.
    """
    own = replicas.components(count)
    return sum(map(float, own)) * replicas.count(count) / len(own)
