"""Each workload's f against its formula in NumPy, in float64."""

import keras
import numpy as np
import pytest

from benchmarks import solvers

_SIZES = {
    "transformer_layer": {"batch": 2, "length": 5, "width": 16, "inner": 24},
    "conv_block": {"batch": 2, "size": 4, "channels": 16},
    "tiny_mlp": {"batch": 3, "hidden": 7},
}


def _normalize(x, axes):
    variance = x.var(axis=axes, keepdims=True)
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(variance + 1e-5)


def _layer_norm(x, w, name):
    return _normalize(x, -1) * w[f"{name}_scale"] + w[f"{name}_shift"]


def _group_norm(x, w, name):
    grouped = x.reshape(*x.shape[:-1], 8, -1)
    normal = _normalize(grouped, (1, 2, 4)).reshape(x.shape)
    return normal * w[f"{name}_scale"] + w[f"{name}_shift"]


def _convolve(x, kernel):
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    return sum(
        padded[:, i : i + height, j : j + width] @ kernel[i, j]
        for i in range(3)
        for j in range(3)
    )


def _transformer_layer(z, x, w):
    a = z + x
    packed = a @ w["qkv_kernel"] + w["qkv_bias"]
    split = [p.reshape(*a.shape[:2], 8, -1) for p in np.split(packed, 3, axis=-1)]
    query, key, value = (p.transpose(0, 2, 1, 3) for p in split)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = scores / scores.sum(-1, keepdims=True) @ value
    mixed = mixed.transpose(0, 2, 1, 3).reshape(a.shape)
    mixed = mixed @ w["output_kernel"] + w["output_bias"]
    h = _layer_norm(a + mixed, w, "attention")
    inner = np.maximum(h @ w["inner_kernel"] + w["inner_bias"], 0)
    update = inner @ w["outer_kernel"] + w["outer_bias"]
    return _layer_norm(h + update, w, "feed_forward")


def _conv_block(z, x, w):
    y = np.maximum(_group_norm(_convolve(z, w["first_kernel"]), w, "first"), 0)
    y = _group_norm(x + _convolve(y, w["second_kernel"]), w, "second")
    return _group_norm(np.maximum(z + y, 0), w, "third")


def _tiny_mlp(z, x, w):
    joined = np.concatenate([z, x], -1)
    hidden = np.tanh(joined @ w["hidden_kernel"] + w["hidden_bias"])
    return hidden @ w["output_kernel"] + w["output_bias"]


_FORMULAS = {
    "transformer_layer": _transformer_layer,
    "conv_block": _conv_block,
    "tiny_mlp": _tiny_mlp,
}


def _disturbed(name):
    """Returns a workload none of whose biases is zero and no scale one, and a state."""
    random = np.random.default_rng(0)
    work = solvers.build(name, _SIZES[name], "float64")
    weights = {
        key: value + 0.1 * random.standard_normal(value.shape)
        for key, value in work.arrays.items()
        if key not in ("injection", "target")
    }
    work.cell.set_weights(list(weights.values()))
    state = random.standard_normal(work.arrays["injection"].shape)
    return work, weights, state


@pytest.mark.parametrize("name", _SIZES)
def test_cell_equals_its_formula(name):
    work, weights, state = _disturbed(name)
    injection = work.arrays["injection"]
    result = work.cell(keras.ops.convert_to_tensor(state), work.injection)
    expected = _FORMULAS[name](state, injection, weights)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", _SIZES)
def test_torch_function_equals_its_formula(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchdeq")
    from benchmarks import torchdeq_peer

    work, weights, _ = _disturbed(name)
    injection = work.arrays["injection"]
    function, _, start, _ = torchdeq_peer.build(
        name, {**work.arrays, **weights}, torch.float64
    )
    result = function(start).detach().numpy()
    if result.ndim == 4:
        result = result.transpose(0, 2, 3, 1)
    expected = _FORMULAS[name](np.zeros_like(injection), injection, weights)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


def test_sizes_of_measurements():
    shapes = {name: solvers.build(name).injection.shape for name in _SIZES}
    assert shapes == {
        "transformer_layer": (16, 128, 256),
        "conv_block": (16, 32, 32, 64),
        "tiny_mlp": (4096, 1),
    }
