"""What happens to a sample that is not finite: here, and nowhere else.

* A sample with a non-finite input is set aside after one evaluation. In training its
  output is the state that it starts from; at inference its output is NaN.
* A sample for which f turns non-finite keeps its best finite iterate.
* Neither changes the others, and neither has a gradient, where 0 * NaN would be NaN:
  f is differentiated at the numbers of a sample that did not fail.
* Where all samples of a training step fail, the weights are to blame, and the output is
  NaN: a finite one would hide that from the loss.
* An adjoint that overflows in float16 is NaN, so that loss scaling skips the step.
* Statistics leave out what is not finite. The share of converged samples shows it.
"""

from deq_keras.faults.bound_function import BoundFunction
from deq_keras.faults.policy import (
    DIVERGED,
    failed_rows,
    finite_or_first,
    finite_rows,
    finite_total,
    has_failed,
    has_no_evaluation,
    improves,
    nan_unless,
    not_finite,
    output,
    reported,
    set_aside,
    training_output,
    unless_failed,
    usable_start,
    with_failed,
    with_overflow,
    without_gradient,
    without_unusable,
)
from deq_keras.faults.sample_function import SampleFunction

__all__ = [
    "DIVERGED",
    "BoundFunction",
    "SampleFunction",
    "failed_rows",
    "finite_or_first",
    "finite_rows",
    "finite_total",
    "has_failed",
    "has_no_evaluation",
    "improves",
    "nan_unless",
    "not_finite",
    "output",
    "reported",
    "set_aside",
    "training_output",
    "unless_failed",
    "usable_start",
    "with_failed",
    "with_overflow",
    "without_gradient",
    "without_unusable",
]
