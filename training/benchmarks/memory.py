"""Peak memory of training steps by the statistics of TensorFlow's allocator.

Whether they see anything, a control tells that must grow: the unrolled gradient, which
keeps every evaluation.
"""

from ..evaluation.peak_memory import peak_growth
from . import bounds, workloads
from .training_step import UNROLLED, TrainingStep

NOT_MEASURABLE = "not measurable here"

_CONTROL_BUDGETS = 6, 60
# A state has 512 KiB, so that the statistics of a CPU see it.
_CONTROL_SIZES = {"batch": 8, "length": 64, "width": 256, "inner": 256}


def peaks(makers):
    """Returns the peak growth of each of several calls, in MiB, or `NOT_MEASURABLE`.

    Args:
        makers: dict of names to functions that make the call; each is made, measured
            and dropped before the next.
    """
    if not is_measurable():
        return NOT_MEASURABLE
    return {name: peak_growth(make()) for name, make in makers.items()}


def is_measurable():
    """Tells whether `peak_growth` sees the growth of a small control."""
    sizes = _CONTROL_SIZES
    control = workloads.build("transformer_layer", sizes=sizes, inner=sizes["inner"])
    growth = {
        budget: peak_growth(TrainingStep(control, UNROLLED, budget))
        for budget in _CONTROL_BUDGETS
    }
    return bounds.is_seen(growth, state_size(control))


def state_size(workload):
    """Returns the size of one state in MiB."""
    return workload.target.numpy().nbytes / 2**20
