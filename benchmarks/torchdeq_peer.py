"""The calls of torchdeq that `solvers.torchdeq` measures, in a separate process.

The process reads weights and inputs from a file. It uses a GPU if torch finds one, with
TensorFlow's default precision of products, TF32.
"""

import functools
import importlib.metadata

import numpy as np
import torch
import torchdeq
from torch.nn import functional

_SOLVERS = {
    "fixed_point_iteration": "fixed_point_iter",
    "anderson": "anderson",
    "broyden": "broyden",
}
_NUM_HEADS = 8
_GROUPS = 8
_EPSILON = 1e-5
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if _DEVICE.type == "cuda":
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def build(name, arrays, dtype=torch.float32):
    """Returns f, its parameters, the initial state and the target of a workload.

    `solvers.Workload` describes `arrays`. Images have their channels first.
    """

    def tensor(array, axes):
        array = array.transpose(axes) if array.ndim == 4 else array
        return torch.as_tensor(array).to(_DEVICE, dtype).contiguous()

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

    return function, parameters, torch.zeros_like(injection), target


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


def versions():
    """Returns the versions of torch and torchdeq, torch's threads and its device."""
    versions = {key: importlib.metadata.version(key) for key in ("torch", "torchdeq")}
    threads = torch.get_num_threads()
    return {**versions, "threads": threads, "device": _DEVICE.type}


def evaluate(name, path):
    """Evaluates f once, for a workload whose arrays are in a file of `numpy.savez`."""
    function, _, start, _ = _load(name, path)
    with torch.no_grad():
        function(start)
    _wait()


def solve(name, path, solver, budget):
    """Solves with an exact budget; see `evaluate`.

    Raises:
        RuntimeError: If torchdeq evaluates f another number of times.
    """
    (function, _, start, _), count = _load(name, path), 0

    def counted(state):
        nonlocal count
        count += 1
        return function(state)

    with torch.no_grad():
        torchdeq.solver.get_solver(_SOLVERS[solver])(
            counted,
            start,
            max_iter=_max_iter(solver, budget),
            tol=0.0,
            stop_mode="rel",
        )
    _wait()
    if count != budget:
        raise RuntimeError(f"torchdeq evaluated f {count} times. Expected: {budget}.")


def step(name, path, solver, budget):
    """Computes mean((z - target)^2) and the gradients of all weights.

    Both solves have the budget. See `evaluate`.
    """
    function, parameters, state, target = _load(name, path)
    if solver == "unrolled":
        for _ in range(budget):
            state = function(state)
    else:
        state = _deq(solver, budget)(function, state)[0][-1]
    loss = (state - target).square().mean()
    torch.autograd.grad(loss, list(parameters.values()))
    _wait()


def _wait():
    """Waits until the GPU is done: a call returns when its work is queued."""
    if _DEVICE.type == "cuda":
        torch.cuda.synchronize()


@functools.cache
def _load(name, path):
    return build(name, np.load(path))


@functools.cache
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
