"""Number of samples per second in training."""

import time

from deq_keras.core import replicas


class Throughput:
    """Counts the samples of an epoch, from its first step to its last.

    Excludes the first step, which may compile. The count comes from the layer's metric,
    so batches can have any size.

    Args:
        layer: `DEQ` layer.

    Attributes:
        rate: Float or `None`. Samples per second of the epoch that `end` has ended.
            `None` if it had only one step.
    """

    def __init__(self, layer):
        name = f"{layer.name}_converged"  # Counts every sample.
        self._metric = next(m for m in layer.metrics if m.name == name)
        self.begin()

    def begin(self):
        """Starts an epoch."""
        self.rate = self._first = self._last = self._first_count = None
        self._is_open = True

    def step(self):
        """Records the end of a step."""
        if self._first is None:
            self._first_count = _value(self._metric.count)  # Waits for the step.
            self._first = time.perf_counter()
        self._last = time.perf_counter()

    def end(self):
        """Ends the epoch before the metric is reset. Further calls have no effect."""
        if not self._is_open or self._first is None:
            return
        self._is_open = False
        count = _value(self._metric.count) - self._first_count
        if count > 0:
            self.rate = count / (self._last - self._first)


def _value(count):
    """Returns the count of all replicas, assuming equal counts in all workers.

    Reading the other counts would involve all workers, but a callback may run on only
    one of them.
    """
    own = replicas.components(count)
    return sum(map(float, own)) * replicas.count(count) / len(own)
