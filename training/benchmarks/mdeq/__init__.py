"""`deq-keras benchmark mdeq`: what a multiscale DEQ costs.

Training steps over their ideal, and the wall time and peak memory of training steps
beside those of explicit networks. Ratios are of one run.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import cells, duration, memory

    return {
        "step": cells.step_costs,
        "time": duration.training_times,
        "memory": memory.training_peaks,
    }


main = BenchmarkCommand(
    "mdeq",
    "Measures a multiscale DEQ, on a quiet machine.",
    ("step", "time", "memory"),
    _measurements,
)
