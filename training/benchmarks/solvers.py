"""`deq-keras benchmark solvers`: solving and differentiating over f itself.

Every number is a ratio of two times of one run, because times drift between machines
and hours: a forward solve over as many compiled calls of f, a training step over the
calls that it cannot avoid, float32 over mixed_bfloat16. The memory of a training step
is measured beside a control that must grow. torchdeq, where it is installed, does the
same work in another process, in turns.
"""

import functools
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from .. import machine
from ..evaluation.peak_memory import peak_growth
from . import workloads
from .costs import (
    PLAIN_LOOP,
    SOLVERS,
    UNROLLED,
    CompiledCell,
    TrainingStep,
    compiled_solve,
    profile,
    solve_cost,
    state_size,
    step_cost,
)
from .measuring import (
    Worker,
    compare,
    does_grow,
    in_fresh_process,
    measure,
    states_per_evaluation,
)
from .runner import Benchmark

_TRANSFORMER, _CONV, _TINY = workloads.NAMES
_BUDGETS = 6, 12, 30
_MEMORY_BUDGETS = 6, 12, 30, 60
_STEP_BUDGET = 12
# Products with the Jacobian over which the time of one is averaged.
_PRODUCTS = 12

# The library promises these bounds on two processors in float32. A change that makes
# something slower breaks them first.
# Largest cost of a solve over its evaluations, by workload, solver and budget.
SOLVE_BOUNDS = {
    (_TRANSFORMER, "anderson"): {6: 1.10, 12: 1.10, 30: 1.10},
    (_TRANSFORMER, "broyden"): {6: 1.20, 12: 1.25, 30: 1.40},
    (_CONV, "anderson"): {6: 1.20, 12: 1.20, 30: 1.20},
    (_CONV, "broyden"): {6: 1.30, 12: 1.50, 30: 1.80},
    (_TINY, "fixed_point_iteration"): {12: 1.2},
    (_TINY, "anderson"): {12: 3.0},
    (_TINY, "broyden"): {12: 3.0},
}
# Largest cost of a training step over its ideal, by workload and solver.
STEP_BOUNDS = {
    (_TRANSFORMER, "anderson"): 1.10,
    (_TRANSFORMER, "broyden"): 1.25,
    (_CONV, "anderson"): 1.20,
    (_CONV, "broyden"): 1.50,
}
# Largest time of a training step over torchdeq's, by workload and solver.
PEER_BOUNDS = {(_CONV, "anderson"): 0.70, (_CONV, "broyden"): 0.40}
# Largest growth of peak memory with the budget, in states per evaluation. Solvers with
# a bounded history keep nothing; Broyden's method keeps one state.
MEMORY_BOUNDS = {"fixed_point_iteration": 0.1, "anderson": 0.1, "broyden": 1.0}
# Least speedup of mixed_bfloat16, and largest angle of its gradient in degrees.
_PRECISION_SPEEDUP, _PRECISION_ANGLE = 1.8, 5.0
# The state of the tiny MLP is smaller than what else is kept, and too small to gain
# from half the bytes.
_LARGE_WORKLOADS = (_TRANSFORMER, _CONV)


def times(
    effort,
    names=workloads.NAMES,
    budgets=_BUDGETS,
    step_budget=_STEP_BUDGET,
    sizes=None,
    **build_arguments,
):
    """Returns the times of f and of its derivatives, and costs over them.

    Args:
        effort: `measuring.Effort`.
        names: Workloads.
        budgets: Evaluations of the forward solves.
        step_budget: Positive integer. Evaluations of the forward and of the adjoint
            solve in a training step.
        sizes: See `workloads.sized`.
        **build_arguments: Other arguments of `workloads.build`.
    """
    results = {}
    for name in names:
        workload = workloads.build(name, sizes=sizes, **build_arguments)
        cell = CompiledCell(workload)
        found = _costs(workload, cell, budgets, step_budget, effort)
        for solver, costs in found["solve"].items():
            limits = SOLVE_BOUNDS.get((name, solver), {})
            for budget, cost in zip(budgets, costs.values(), strict=True):
                cost |= at_most(limits.get(budget), cost)
        for solver, cost in found["train"].items():
            cost |= at_most(STEP_BOUNDS.get((name, solver)), cost)
        results[name] = {"calls_ms": _call_times(cell, effort), **found}
    return results


def xla(
    effort,
    names=workloads.NAMES,
    budgets=_BUDGETS,
    step_budget=_STEP_BUDGET,
    sizes=None,
    **build_arguments,
):
    """Returns costs of solves and of training steps, all compiled by XLA; see
    `times`."""
    results = {}
    for name in names:
        workload = workloads.build(name, sizes=sizes, **build_arguments)
        cell = CompiledCell(workload, jit_compile=True)
        results[name] = _costs(workload, cell, budgets, step_budget, effort)
    return results


def _call_times(cell, effort):
    """Milliseconds of f, of a product with its Jacobian, and of a back-propagation to
    all weights. The latter two are differences of calls that evaluate f as well."""
    product = cell.differentiate(0, with_weights=False)
    products = cell.differentiate(_PRODUCTS, with_weights=False)
    to_weights = cell.differentiate(0)
    vjp = compare(products, product, effort).difference / _PRODUCTS
    return {
        "evaluate": measure(cell.evaluate, effort).median,
        "vjp": vjp,
        "backpropagate": vjp + compare(to_weights, product, effort).difference,
    }


def _costs(workload, cell, budgets, step_budget, effort):
    """Returns the costs of solves by solver and budget, and of steps by solver."""
    return {
        "solve": {
            solver: {
                f"NFE {budget}": solve_cost(workload, cell, solver, budget, effort)
                for budget in budgets
            }
            for solver in (PLAIN_LOOP, *SOLVERS)
        },
        "train": {
            solver: step_cost(workload, solver, step_budget, effort, cell)
            for solver in (*SOLVERS, UNROLLED)
        },
    }


def at_most(limit, cost):
    """Returns the entries `bound` and `met` of a cost that has a limit."""
    if limit is None:
        return {}
    return {"bound": f"<= {limit:.2f}", "met": cost["median"] <= limit}


def precision(
    effort,
    names=_LARGE_WORKLOADS,
    step_budget=_STEP_BUDGET,
    sizes=None,
    **build_arguments,
):
    """Returns the speedup of the training step in mixed_bfloat16 over float32, and the
    angle between the two steps' gradients in degrees.

    On a GPU, XLA compiles the steps, as Keras does there by default. See `times`.
    """
    flags = machine.processor("flags")
    if not _has_gpu() and flags is not None and "bf16" not in flags:
        return "This processor has no bfloat16 instructions."
    results = {}
    for name in (name for name in names if name in _LARGE_WORKLOADS):
        results[name] = {}
        for solver in SOLVERS:
            full, mixed = (
                TrainingStep(
                    workloads.build(name, dtype, sizes, **build_arguments),
                    solver,
                    step_budget,
                    _has_gpu(),
                )
                for dtype in ("float32", "mixed_bfloat16")
            )
            speedup = compare(full, mixed, effort)
            angle = degrees_between(full.gradient(), mixed.gradient())
            results[name][solver] = {
                "speedup": {
                    **speedup._asdict(),
                    "bound": f">= {_PRECISION_SPEEDUP}",
                    "met": speedup.median >= _PRECISION_SPEEDUP,
                },
                "angle": {
                    "degrees": angle,
                    "bound": f"<= {_PRECISION_ANGLE}",
                    "met": angle <= _PRECISION_ANGLE,
                },
            }
    return results


def degrees_between(first, second):
    """Returns the angle between two vectors, in degrees."""
    first, second = (vector / np.linalg.norm(vector) for vector in (first, second))
    # Unlike the arc cosine of the product this is accurate for small angles.
    half = np.arctan2(np.linalg.norm(first - second), np.linalg.norm(first + second))
    return float(np.degrees(2 * half))


def launches(effort, names=workloads.NAMES, step_budget=_STEP_BUDGET, sizes=None):
    """Returns the GPU kernels and copies per evaluation, for f alone and in a solve.

    The host waits for each copy to it. See `times`.
    """
    del effort
    if not _has_gpu():
        return "TensorFlow finds no GPU."
    results = {}
    for name in names:
        workload = workloads.build(name, sizes=sizes)
        cell = CompiledCell(workload)
        results[name] = {"evaluate": _launches(cell.evaluate, 1)}
        for solver in (PLAIN_LOOP, *SOLVERS):
            solve = compiled_solve(workload, solver, step_budget)
            results[name][solver] = _launches(solve, step_budget)
    return results


def _launches(call, num_evaluations):
    call()
    return launches_of(profile(call), num_evaluations)


def launches_of(planes, num_evaluations):
    """Returns kernels and copies to the host in a profile, per evaluation.

    Args:
        planes: Planes of a TensorFlow profile.
        num_evaluations: Positive integer. Evaluations in that profile.
    """
    names = [
        plane.event_metadata[event.metadata_id].name
        for plane in planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]
    copies = sum("MemcpyD2H" in name for name in names)
    return {
        "kernels": (len(names) - copies) / num_evaluations,
        "copies_to_host": copies / num_evaluations,
    }


def memory(
    effort,
    names=workloads.NAMES,
    memory_budgets=_MEMORY_BUDGETS,
    sizes=None,
    **build_arguments,
):
    """Returns the peak memory of training steps in MiB, by solver and budget.

    On a GPU, XLA compiles the steps, as Keras does there by default. See `times`.
    """
    del effort
    results = {}
    for name in names:
        workload = workloads.build(name, sizes=sizes, **build_arguments)
        peaks = {
            solver: {
                budget: peak_growth(TrainingStep(workload, solver, budget, _has_gpu()))
                for budget in memory_budgets
            }
            for solver in (*SOLVERS, UNROLLED)
        }
        results[name] = bounded_peaks(name, peaks, state_size(workload))
    return results


def bounded_peaks(name, peaks, state_mib):
    """Returns peaks in MiB by solver and budget beside the promised growth.

    A bound is met only if the control, which must grow, does.

    Args:
        name: A workload. Only large workloads have a bound.
        peaks: Dict of solvers to dicts of budgets to MiB.
        state_mib: Float. The size of one state.
    """
    if name not in _LARGE_WORKLOADS:
        return peaks
    is_seen = does_grow(peaks[UNROLLED], state_mib)
    results = {UNROLLED: peaks[UNROLLED]}
    for solver, limit in MEMORY_BOUNDS.items():
        bound, met = f"<= {limit:g} states per NFE", None
        if is_seen:
            # One decimal: the order of parallel operations moves a peak by a state.
            growth = round(states_per_evaluation(peaks[solver], state_mib), 1)
            bound, met = f"{bound} ({growth:.1f})", growth <= limit
        results[solver] = {**peaks[solver], "bound": bound, "met": met}
    return results


def torchdeq(
    effort,
    names=workloads.NAMES,
    budgets=_BUDGETS,
    step_budget=_STEP_BUDGET,
    memory_budgets=_MEMORY_BUDGETS,
    peer_python=sys.executable,
    sizes=None,
    **build_arguments,
):
    """Returns our times over torchdeq's, and its peak memory, where it is installed.

    Both libraries take turns, so that a drifting clock cancels. On a GPU, XLA compiles
    our calls, as Keras does there by default. torchdeq's peaks are measured in fresh
    processes: allocated memory on a GPU, resident memory on a CPU.

    Args:
        effort: See `times`, like `names`, `budgets` and `step_budget`.
        memory_budgets: Evaluations of the steps whose memory is measured.
        peer_python: Path of an interpreter that can import torchdeq.
        sizes: See `times`.
        **build_arguments: See `times`.
    """
    ask = functools.partial(in_fresh_process, python=peer_python)
    try:
        results = {"versions": ask("torchdeq_peer.versions", {})}
    except (OSError, RuntimeError):
        return (
            f"{peer_python} cannot import torch and torchdeq; install the extra "
            "`benchmark`, or name another interpreter with --peer-python."
        )
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            work = {"name": name, "path": str(Path(folder) / f"{name}.npz")}
            values = workloads.arrays(name, **workloads.sized(name, sizes))
            inputs = {"injection": values.injection, "target": values.target}
            np.savez(work["path"], **values.weights, **inputs)
            workload = workloads.build(name, sizes=sizes, **build_arguments)
            with Worker(peer_python) as peer:
                ratios = in_turns(workload, peer, work, budgets, step_budget, effort)
            peaks = {
                solver: {
                    budget: ask(
                        "torchdeq_peer.peak_memory",
                        {**work, "solver": solver, "budget": budget},
                    )
                    for budget in memory_budgets
                }
                for solver in (*SOLVERS, UNROLLED)
            }
            results[name] = {**ratios, "peak_memory_mib": peaks}
    return results


def in_turns(workload, peer, work, budgets, step_budget, effort):
    """Returns our times over a peer's, by kind of call, solver and budget.

    Args:
        workload: `workloads.Workload`.
        peer: `measuring.Worker` that can import `torchdeq_peer`.
        work: Dict of the arguments `name` and `path` of its functions.
        budgets: See `times`, like `step_budget` and `effort`.
    """

    def ratio(call, function, **request):
        def other():
            return peer(f"torchdeq_peer.{function}", {**work, **request})

        return compare(call, other, effort, workers=(peer,))

    on_gpu = _has_gpu()
    cell = CompiledCell(workload, on_gpu)
    results = {"evaluate": ratio(cell.evaluate, "evaluate"), "solve": {}, "train": {}}
    for solver in SOLVERS:
        results["solve"][solver] = {}
        for budget in budgets:
            cost = ratio(
                compiled_solve(workload, solver, budget, on_gpu),
                "solve",
                solver=solver,
                budget=budget,
            )
            results["solve"][solver][f"NFE {budget}"] = cost
    for solver in (*SOLVERS, UNROLLED):
        step = TrainingStep(workload, solver, step_budget, on_gpu)
        cost = ratio(step, "step", solver=solver, budget=step_budget)._asdict()
        limit = PEER_BOUNDS.get((workload.name, solver))
        results["train"][solver] = cost | at_most(limit, cost)
    return results


def _has_gpu():
    return bool(tf.config.list_logical_devices("GPU"))


def _add_arguments(parser):
    parser.add_argument(
        "--workloads",
        dest="names",
        nargs="+",
        choices=workloads.NAMES,
        default=workloads.NAMES,
        metavar="NAME",
        help=f"which of {', '.join(workloads.NAMES)}; default: all",
    )
    parser.add_argument(
        "--sizes",
        choices=tuple(workloads.SIZES),
        default="default",
        help="of the workloads: for two processors (default), or to fill a GPU",
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that can import torchdeq; default: this one",
    )


BENCHMARKS = {
    "solvers": Benchmark(
        "Measures solvers and training steps over the cost of f itself.",
        {
            "times": times,
            "xla": xla,
            "precision": precision,
            "launches": launches,
            "memory": memory,
            "torchdeq": torchdeq,
        },
        optional=("xla",),
        add_arguments=_add_arguments,
    )
}
