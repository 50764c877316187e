"""The benchmark's workloads in plain PyTorch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .arrays import arrays

_NUM_HEADS = 8
_GROUPS = 8
_EPSILON = 1e-5


class TorchWorkload(NamedTuple):
    """What is solved.

    Attributes:
        name: as in `arrays.NAMES`.
        function: f, from a state to a state.
        parameters: dict from name to leaf tensor that requires a gradient.
        start: the state of zeros; channels first where there are channels and space.
        target: tensor like the state.
    """

    name: str
    function: Callable
    parameters: dict
    start: Any
    target: Any


def build(name, sizes=None, dtype=torch.float32):
    """Returns the workload of that name, of the given sizes."""
    values = arrays(name, **(sizes or {}))
    is_map = values.injection.ndim == 4
    state_to_torch = _map_to_torch if is_map else _as_is

    def tensor(array):
        return array.to(dtype).contiguous()

    parameters = {
        key: tensor(_kernel_to_torch(value)).requires_grad_()
        for key, value in values.weights.items()
    }
    injection = tensor(state_to_torch(values.injection))
    target = tensor(state_to_torch(values.target))

    def function(state):
        return _FUNCTIONS[name](state, injection, parameters)

    return TorchWorkload(
        name, function, parameters, torch.zeros_like(injection), target
    )


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


def _as_is(array):
    return torch.as_tensor(array)


def _kernel_to_torch(kernel):
    """(height, width, in, out) to (out, in, height, width); vectors as they are."""
    return _as_is(kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel)


def _map_to_torch(feature_map):
    return _as_is(feature_map.transpose(0, 3, 1, 2))  # (B, C, H, W)


_FUNCTIONS = {
    "transformer_layer": _transformer_layer,
    "conv_block": _conv_block,
    "tiny_mlp": _tiny_mlp,
}
