"""Mixed bfloat16 against float32: the time and the direction of a training step."""

from typing import NamedTuple

import numpy as np

from . import workloads
from .timing import Ratio, compare
from .training_step import TrainingStep


class PrecisionCost(NamedTuple):
    """What a lower precision gains and loses.

    Attributes:
        speedup: `Ratio` of the float32 step's time to the lower precision's.
        angle: float. Degrees between the two steps' parameter gradients.
    """

    speedup: Ratio
    angle: float


def precision_cost(
    workload_name, solver_name, num_evaluations, effort, sizes=None, **cell_arguments
):
    """Compares the `mixed_bfloat16` training step with the float32 one.

    Args:
        workload_name: one of `arrays.NAMES`.
        solver_name: the solver of the forward and of the adjoint equation.
        num_evaluations: int. The exact budget of each.
        effort: a `timing.Effort`.
        sizes: dict of workload sizes. `None`: the benchmark's.
        **cell_arguments: of the cell, where they differ from the benchmark's.

    Returns:
        A `PrecisionCost`.
    """
    full, mixed = (
        TrainingStep(
            workloads.build(workload_name, dtype, sizes, **cell_arguments),
            solver_name,
            num_evaluations,
        )
        for dtype in ("float32", "mixed_bfloat16")
    )
    angle = degrees_between(full.gradient(), mixed.gradient())
    return PrecisionCost(compare(full, mixed, effort), angle)


def degrees_between(first, second):
    """Returns the angle between two vectors, in degrees."""
    first, second = (vector / np.linalg.norm(vector) for vector in (first, second))
    # Unlike the arc cosine of the product this is accurate for small angles.
    half = np.arctan2(np.linalg.norm(first - second), np.linalg.norm(first + second))
    return float(np.degrees(2 * half))
