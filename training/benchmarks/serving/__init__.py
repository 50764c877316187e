"""`deq-keras benchmark serving`: what a file costs, to write and to ask.

The time of a request through the signatures of a SavedModel beside that of the traced
model itself, one image each, and the seconds in which each format is written and
checked.
"""

from ..command import BenchmarkCommand


def _measurements():
    from . import exports

    return {"signatures": exports.signatures, "exports": exports.exports}


main = BenchmarkCommand(
    "serving",
    "Measures requests to a SavedModel, and exports, on a quiet machine.",
    ("signatures", "exports"),
    _measurements,
)
