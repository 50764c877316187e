"""`deq-keras benchmark compaction`: what it saves that samples which are done leave.

The time of a compact solve over that of the masked loop, on batches in which samples
need different numbers of evaluations, and the evaluations of a sample that each spends
over those that the samples need. Ratios are of one run.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import batches

    return {"solves": batches.costs}


main = BenchmarkCommand(
    "compaction",
    "Measures solves in which samples leave the batch, on a quiet machine.",
    ("solves",),
    _measurements,
)
