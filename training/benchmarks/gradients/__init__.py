"""`deq-keras benchmark gradients`: what back-propagation through graded steps costs.

The training step of `TruncatedGradient` over the same steps written as a loop in
Python, the least that a weight-tied network of as many layers takes, and what of memory
each further step keeps, with activations and without. Ratios are of one run.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import truncated

    return {"time": truncated.step_costs, "memory": truncated.training_peaks}


main = BenchmarkCommand(
    "gradients",
    "Measures back-propagation through graded steps, on a quiet machine.",
    ("time", "memory"),
    _measurements,
)
