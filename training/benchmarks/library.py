"""All measurements of this library on one workload."""

from . import memory, workloads
from .compiled_cell import CompiledCell
from .precision import precision_cost
from .solving import PLAIN_LOOP, SOLVERS, solve_cost
from .timing import compare, measure
from .training_step import UNROLLED, TrainingStep, step_cost

# A tiny state leaves nothing to gain from half the bytes.
_PRECISION_WORKLOADS = ("transformer_layer", "conv_block")

# Products with the Jacobian over which the time of one is averaged.
_PRODUCTS = 12


def measure_times(name, plan, left_out, log):
    """Returns all wall times of the library on one workload, as a dict.

    Args:
        name: one of `arrays.NAMES`.
        plan: a `Plan`.
        left_out: what is not measured; with `mixed_bfloat16` the speed of half
            precision is not.
        log: function that is told, in words, what is measured next.
    """
    workload = workloads.build(name, **plan.build_arguments)
    cell = CompiledCell(workload)
    log(f"{name}: f and its derivatives")
    results = {
        "calls": _call_times(cell, plan),
        "solve": _solve_costs(workload, cell, plan, log),
        "train": _step_costs(workload, cell, plan, log),
    }
    if plan.with_xla:
        log(f"{name}: now under XLA")
        cell = CompiledCell(workload, jit_compile=True)
        results["solve_xla"] = _solve_costs(workload, cell, plan, log)
    if name in _PRECISION_WORKLOADS and "mixed_bfloat16" not in left_out:
        results["mixed_bfloat16"] = _precision_costs(name, plan, log)
    return results


def measure_memory(name, plan, log):
    """Returns the peak memory of training steps on one workload, in MiB, by solver and
    budget, and the size of one state."""
    workload = workloads.build(name, **plan.build_arguments)
    peaks = {}
    for solver in (*SOLVERS, UNROLLED):
        log(f"{name}: memory of a training step, {solver}")
        peaks[solver] = {
            budget: memory.peak_growth(TrainingStep(workload, solver, budget))
            for budget in plan.memory_budgets
        }
    return {"memory": peaks, "state_mib": memory.state_size(workload)}


def _call_times(cell, plan):
    """Milliseconds of f, of a product with its Jacobian, and of a back-propagation to
    all weights. The latter two are differences of calls that evaluate f as well."""
    product = cell.differentiate(0, with_weights=False)
    products = cell.differentiate(_PRODUCTS, with_weights=False)
    to_weights = cell.differentiate(0)
    vjp = _difference(products, product, plan) / _PRODUCTS
    return {
        "evaluate": measure(cell.evaluate, plan.effort).median,
        "vjp": vjp,
        "backpropagate": vjp + _difference(to_weights, product, plan),
    }


def _difference(longer, shorter, plan):
    ratio = compare(longer, shorter, plan.effort)
    return ratio.numerator.median - ratio.denominator.median


def _solve_costs(workload, cell, plan, log):
    costs = {}
    for solver in (PLAIN_LOOP, *SOLVERS):
        log(f"{workload.name}: solve, {solver}")
        costs[solver] = {
            budget: solve_cost(workload, cell, solver, budget, plan.effort)
            for budget in plan.solve_budgets
        }
    return costs


def _step_costs(workload, cell, plan, log):
    costs = {}
    for solver in (*SOLVERS, UNROLLED):
        log(f"{workload.name}: training step, {solver}")
        costs[solver] = step_cost(workload, cell, solver, plan.step_budget, plan.effort)
    return costs


def _precision_costs(name, plan, log):
    costs = {}
    for solver in SOLVERS:
        log(f"{name}: training step in mixed_bfloat16, {solver}")
        costs[solver] = precision_cost(
            name, solver, plan.step_budget, plan.effort, **plan.build_arguments
        )
    return costs
