"""How much of the benchmark runs."""

from typing import NamedTuple

from .timing import QUICK, Effort


class Plan(NamedTuple):
    """What is measured of every workload.

    Attributes:
        solve_budgets: evaluations of the forward solves.
        step_budget: evaluations of the forward and of the adjoint solve in a training
            step.
        memory_budgets: evaluations of the steps whose memory is measured; empty
            to leave memory out.
        effort: a `timing.Effort`.
        with_xla: whether solves are measured under XLA as well.
        build_arguments: of `workloads.build`, where they differ from the benchmark's.
    """

    solve_budgets: tuple = (6, 12, 30)
    step_budget: int = 12
    memory_budgets: tuple = (6, 12, 30, 60)
    effort: Effort = Effort()
    with_xla: bool = False
    build_arguments: dict = {}

    @property
    def sizes(self):
        return self.build_arguments.get("sizes")


def quick():
    """A plan that shows whether everything works; its numbers mean little."""
    return Plan(memory_budgets=(6, 60), effort=QUICK)
