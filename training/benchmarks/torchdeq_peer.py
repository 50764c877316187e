"""The measurements of `solvers` for torchdeq, in a process without TensorFlow.

`solvers.torchdeq` calls `versions`, `times` and `peak_memory`; weights and inputs come
in a file.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torchdeq
from torch.nn import functional

from .measuring import Effort, compare, measure, resident_memory

_PLAIN_LOOP = "plain_loop"
_UNROLLED = "unrolled"
_SOLVERS = {
    "fixed_point_iteration": "fixed_point_iter",
    "anderson": "anderson",
    "broyden": "broyden",
}
_NUM_HEADS = 8
_GROUPS = 8
_EPSILON = 1e-5


class TorchWorkload(NamedTuple):
    """What is solved.

    Attributes:
        function: f, from a state to a state.
        parameters: Dict from name to leaf tensor that requires a gradient.
        start: State of zeros; images have their channels first.
        target: Tensor like the state.
    """

    function: Callable
    parameters: dict
    start: Any
    target: Any


def build(name, arrays, dtype=torch.float32):
    """Returns the `TorchWorkload` of a name.

    Args:
        name: A workload of `workloads`.
        arrays: Mapping of the names of all weights, `injection` and `target` to arrays
            in the layouts of `workloads.Arrays`.
        dtype: Torch dtype. Defaults to `torch.float32`.
    """

    def tensor(array, axes):
        array = array.transpose(axes) if array.ndim == 4 else array
        return torch.as_tensor(array).to(dtype).contiguous()

    parameters = {
        key: tensor(arrays[key], (3, 2, 0, 1)).requires_grad_()  # (out, in, H, W)
        for key in arrays
        if key not in ("injection", "target")
    }
    injection, target = (
        tensor(arrays[key], (0, 3, 1, 2)) for key in ("injection", "target")
    )  # (B, C, H, W)

    def function(state):
        return _FUNCTIONS[name](state, injection, parameters)

    return TorchWorkload(function, parameters, torch.zeros_like(injection), target)


def _transformer_layer(state, injection, p):
    attended = state + injection
    packed = attended @ p["qkv_kernel"] + p["qkv_bias"]
    heads = packed.unflatten(-1, (3, _NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = heads.unbind(0)  # (B, H, L, K) each
    scores = query @ key.mT * query.shape[-1] ** -0.5  # (B, H, L, L)
    mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)  # (B, L, H*K)
    mixed = mixed @ p["output_kernel"] + p["output_bias"]
    hidden = _layer_norm(attended + mixed, p, "attention")
    inner = hidden @ p["inner_kernel"] + p["inner_bias"]
    update = inner.relu() @ p["outer_kernel"] + p["outer_bias"]
    return _layer_norm(hidden + update, p, "feed_forward")


def _conv_block(state, injection, p):
    hidden = functional.conv2d(state, p["first_kernel"], padding=1)
    hidden = _group_norm(hidden, p, "first").relu()
    hidden = injection + functional.conv2d(hidden, p["second_kernel"], padding=1)
    hidden = (state + _group_norm(hidden, p, "second")).relu()
    return _group_norm(hidden, p, "third")


def _tiny_mlp(state, injection, p):
    joined = torch.cat([state, injection], dim=-1)
    hidden = torch.tanh(joined @ p["hidden_kernel"] + p["hidden_bias"])
    return hidden @ p["output_kernel"] + p["output_bias"]


def _layer_norm(inputs, p, name):
    scale, shift = p[f"{name}_scale"], p[f"{name}_shift"]
    return functional.layer_norm(inputs, scale.shape, scale, shift, _EPSILON)


def _group_norm(inputs, p, name):
    scale, shift = p[f"{name}_scale"], p[f"{name}_shift"]
    return functional.group_norm(inputs, _GROUPS, scale, shift, _EPSILON)


_FUNCTIONS = {
    "transformer_layer": _transformer_layer,
    "conv_block": _conv_block,
    "tiny_mlp": _tiny_mlp,
}


def times(name, path, budgets, step_budget, effort):
    """Returns the times and costs of torchdeq on one workload, like `solvers.times`.

    Args:
        name: A workload of `workloads`.
        path: File of its arrays, written by `numpy.savez`.
        budgets: List of integers. Evaluations of the solves.
        step_budget: Positive integer. Evaluations of the training step's two solves.
        effort: The fields of a `measuring.Effort`.
    """
    effort = Effort(*effort)
    work = build(name, np.load(path))
    calls = _Calls(work)
    return {
        "threads": torch.get_num_threads(),
        "calls_ms": {
            key: measure(call, effort).median for key, call in calls.all().items()
        },
        "solve": {
            solver: {
                f"NFE {budget}": _solve_cost(work, calls, solver, budget, effort)
                for budget in budgets
            }
            for solver in (_PLAIN_LOOP, *_SOLVERS)
        },
        "train": {
            solver: compare(
                lambda solver=solver: training_step(work, solver, step_budget),
                lambda: calls.ideal_step(step_budget),
                effort,
            )
            for solver in (*_SOLVERS, _UNROLLED)
        },
    }


def versions():
    """Returns the versions of torch and torchdeq."""
    return {name: importlib.metadata.version(name) for name in ("torch", "torchdeq")}


def peak_memory(name, path, solver, budget):
    """Returns the growth of resident memory in the first training step, in MiB.

    The growth is `None` where resident memory is unknown. Only the first step of a
    process is measured: freed memory stays with the process and hides later steps.
    """
    work = build(name, np.load(path))
    start = resident_memory("VmRSS")
    training_step(work, solver, budget)
    return None if start is None else max(0.0, resident_memory() - start)


def forward_solve(work, name, num_evaluations):
    """Solves from zero with an exact budget; returns the state and the evaluations."""
    count = 0

    def counted(state):
        nonlocal count
        count += 1
        return work.function(state)

    with torch.no_grad():
        if name == _PLAIN_LOOP:
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
    if name == _UNROLLED:
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
        self.point, _ = forward_solve(work, _PLAIN_LOOP, 5)
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
        self.backpropagate(self.function(self.tracked_point))


def _solve_cost(work, calls, name, num_evaluations, effort):
    state, count = forward_solve(work, name, num_evaluations)

    def evaluate():
        for _ in range(count):
            calls.evaluate()

    with torch.no_grad():
        value = work.function(state)
        error = (value - state).flatten(1).norm(dim=1)
        residual = np.nanmedian((error / value.flatten(1).norm(dim=1)).numpy())
    is_finite = torch.isfinite(state).flatten(1).all(dim=1)
    ratio = compare(
        lambda: forward_solve(work, name, num_evaluations), evaluate, effort
    )
    return {
        **ratio._asdict(),
        "num_evaluations": count,
        "num_diverged": int((~is_finite).sum()),
        "residual": float(residual),
    }


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
