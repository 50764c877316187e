"""The same measurements of torchdeq, in a process without TensorFlow."""

import numpy as np
import torch
import torchdeq

from . import fresh_process, resident_memory, torchdeq_workloads
from .timing import Effort, compare, measure

PLAIN_LOOP = "plain_loop"
UNROLLED = "unrolled"
_SOLVERS = {
    "fixed_point_iteration": "fixed_point_iter",
    "anderson": "anderson",
    "broyden": "broyden",
}


def measure_peer(workload, budgets, step_budget, effort, sizes=None):
    """Measures torchdeq on one workload; see `solvers.py` for what is measured.

    Args:
        workload: one of `arrays.NAMES`.
        budgets: list of int. Evaluations of the solves.
        step_budget: int. Evaluations of the training step's two solves.
        effort: the fields of a `timing.Effort`.
        sizes: dict of workload sizes. `None`: the benchmark's.

    Returns:
        A dict of the shape that `library.measure_times` gives.
    """
    effort = Effort(*effort)
    work = torchdeq_workloads.build(workload, sizes)
    calls = _Calls(work)
    names = (PLAIN_LOOP, *_SOLVERS)
    return {
        "threads": torch.get_num_threads(),
        "calls": {
            name: measure(call, effort).median for name, call in calls.all().items()
        },
        "solve": {
            name: {
                budget: _solve_cost(work, calls, name, budget, effort)
                for budget in budgets
            }
            for name in names
        },
        "train": {
            name: _step_cost(work, calls, name, step_budget, effort)
            for name in (*_SOLVERS, UNROLLED)
        },
    }


def measure_peak_memory(workload, name, num_evaluations, sizes=None):
    """Returns the peak growth of memory in the first training step, in MiB."""
    work = torchdeq_workloads.build(workload, sizes)

    return resident_memory.peak_growth(
        lambda: training_step(work, name, num_evaluations)
    )


def forward_solve(work, name, num_evaluations):
    """Solves from zero with an exact budget; returns the state and the evaluations."""
    count = 0

    def counted(state):
        nonlocal count
        count += 1
        return work.function(state)

    with torch.no_grad():
        if name == PLAIN_LOOP:
            state = work.start
            for _ in range(num_evaluations):
                state = counted(state)
            return state, count
        solve = torchdeq.solver.get_solver(_SOLVERS[name])
        state, _, _ = solve(
            counted,
            work.start,
            max_iter=_max_iter(name, num_evaluations),
            tol=0.0,
            stop_mode="rel",
        )
    return state, count


def training_step(work, name, num_evaluations):
    """Returns loss and parameter gradients of mean((z* - target)^2)."""
    if name == UNROLLED:
        state = work.start
        for _ in range(num_evaluations):
            state = work.function(state)
    else:
        state = _deq(name, num_evaluations)(work.function, work.start)[0][-1]
    loss = (state - work.target).square().mean()
    return loss, torch.autograd.grad(loss, list(work.parameters.values()))


class _Calls:
    """f and its derivatives at a fixed point."""

    def __init__(self, work):
        self.function = work.function
        self.point, _ = forward_solve(work, PLAIN_LOOP, 5)
        self.tracked_point = self.point.clone().requires_grad_()
        self.sources = [self.tracked_point, *work.parameters.values()]
        self.value = work.function(self.tracked_point)
        generator = torch.Generator().manual_seed(1)
        self.cotangent = torch.randn(self.value.shape, generator=generator)

    def all(self):
        return {
            "evaluate": self.evaluate,
            "vjp": self.vjp,
            "backpropagate": lambda: self.backpropagate(self.value, retain=True),
        }

    def evaluate(self):
        with torch.no_grad():
            self.function(self.point)

    def evaluate_tracked(self):
        return self.function(self.tracked_point)

    def vjp(self):
        torch.autograd.grad(
            self.value, self.tracked_point, self.cotangent, retain_graph=True
        )

    def backpropagate(self, value, retain=False):
        torch.autograd.grad(value, self.sources, self.cotangent, retain_graph=retain)

    def ideal_step(self, num_evaluations):
        for _ in range(num_evaluations):
            self.evaluate()
        for _ in range(num_evaluations):
            self.vjp()
        self.backpropagate(self.evaluate_tracked())


def _solve_cost(work, calls, name, num_evaluations, effort):
    state, count = forward_solve(work, name, num_evaluations)

    def evaluate():
        for _ in range(count):
            calls.evaluate()

    ratio = compare(
        lambda: forward_solve(work, name, num_evaluations), evaluate, effort
    )
    is_finite = torch.isfinite(state).flatten(1).all(dim=1)
    return {
        "ratio": ratio,
        "num_evaluations": count,
        "num_diverged": int((~is_finite).sum()),
        "residual": _median_residual(work, state),
    }


def _median_residual(work, state):
    with torch.no_grad():
        value = work.function(state)
        error = (value - state).flatten(1).norm(dim=1)
        return float(np.nanmedian((error / value.flatten(1).norm(dim=1)).numpy()))


def _step_cost(work, calls, name, num_evaluations, effort):
    ratio = compare(
        lambda: training_step(work, name, num_evaluations),
        lambda: calls.ideal_step(num_evaluations),
        effort,
    )
    return {"ratio": ratio}


def _deq(name, num_evaluations):
    options = {}
    for side in ("f", "b"):
        options[f"{side}_solver"] = _SOLVERS[name]
        options[f"{side}_max_iter"] = _max_iter(name, num_evaluations)
        options[f"{side}_tol"] = 0.0
        options[f"{side}_stop_mode"] = "rel"
    return torchdeq.get_deq(core="indexing", ift=True, **options).train()


def _max_iter(name, num_evaluations):
    # torchdeq's Broyden evaluates f once before it starts to count.
    return num_evaluations - 1 if name == "broyden" else num_evaluations


def _answer(task, **request):
    tasks = {"measure": measure_peer, "peak_memory": measure_peak_memory}
    return tasks[task](**request)


if __name__ == "__main__":
    fresh_process.answer(_answer)
