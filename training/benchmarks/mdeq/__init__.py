"""`deq-keras benchmark mdeq`: what a multiscale DEQ costs.

Training steps over their ideal, and the peak memory of training steps against explicit
networks. Ratios are of one run.
"""

from training.benchmarks.parts_command import PartsCommand


def _measurements():
    from training.benchmarks.mdeq import cells, memory

    return {
        "step": cells.step_costs,
        "memory": memory.training_peaks,
    }


main = PartsCommand(
    "mdeq",
    "Measures a multiscale DEQ, on a quiet machine.",
    ("step", "memory"),
    _measurements,
)
