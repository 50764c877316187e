"""The calls of torchdeq that `peers` measures, in a separate process.

The process reads weights and inputs from a file. It uses a GPU if torch finds one, with
TensorFlow's default precision of products, TF32.
"""

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


def _dense(state, injection, p):
    return torch.tanh(state @ p["kernel"] + injection)


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
    "dense": _dense,
}


def make(name, path, library, kind, solver=None, budget=None, tol=0.0):
    """Returns a call without arguments, for a workload whose arrays are in a file.

    Args:
        name: Name of a workload.
        path: File of `numpy.savez`.
        library: `"torchdeq"`.
        kind: `"evaluate"`: f at the start. `"solve"`: a solve. `"step"`: the gradients
            of mean((z - target)^2) for all weights. Both solves have the budget.
        solver: Name of a solver, or `"unrolled"`.
        budget: Evaluations of f.
        tol: Tolerance of a solve. 0: the whole budget is spent.

    Returns:
        A function that returns a state as an array, or the loss.
    """
    del library
    function, parameters, start, target = build(name, np.load(path))
    if kind == "step":
        deq = None if solver == "unrolled" else _deq(solver, budget)

    def call():
        if kind == "step":
            state = start
            if deq is None:
                for _ in range(budget):
                    state = function(state)
            else:
                state = deq(function, state)[0][-1]
            loss = (state - target).square().mean()
            torch.autograd.grad(loss, list(parameters.values()))
            result = loss.detach()
        else:
            with torch.no_grad():
                result = function(start) if kind == "evaluate" else solve()
        if _DEVICE.type == "cuda":
            torch.cuda.synchronize()  # A call returns when its work is queued.
        return _array(result)

    def solve():
        count = 0

        def counted(state):
            nonlocal count
            count += 1
            return function(state)

        state, _, _ = torchdeq.solver.get_solver(_SOLVERS[solver])(
            counted, start, max_iter=_max_iter(solver, budget), tol=tol, stop_mode="rel"
        )
        if count != budget and not tol:
            raise RuntimeError(f"torchdeq evaluated f {count} times, not {budget}.")
        return state

    return call


def _array(result):
    result = result.cpu().numpy()
    return result.transpose(0, 2, 3, 1) if result.ndim == 4 else result


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
