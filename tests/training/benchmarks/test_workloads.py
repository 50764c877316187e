"""Each workload's f against its formula in NumPy, in float64."""

import keras
import numpy as np
import pytest

from training.benchmarks import workloads
from training.benchmarks.workloads import arrays

_SIZES = {
    "transformer_layer": {"batch": 2, "length": 5, "width": 16, "inner": 24},
    "conv_block": {"batch": 2, "size": 4, "channels": 16},
    "tiny_mlp": {"batch": 3, "hidden": 7},
}
_ARGUMENTS = {"transformer_layer": {"inner": 24}, "tiny_mlp": {"hidden": 7}}


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


def _drawn(name, random):
    """The workload's weights, disturbed so that no bias is zero and no scale one."""
    values = arrays(name, **_SIZES[name])
    weights = {
        key: value + 0.1 * random.standard_normal(value.shape)
        for key, value in values.weights.items()
    }
    return weights, values, random.standard_normal(values.injection.shape)


@pytest.mark.parametrize("name", _SIZES)
def test_cell_equals_its_formula(name):
    weights, values, state = _drawn(name, np.random.default_rng(0))
    workload = workloads.build(
        name, "float64", _SIZES[name], **_ARGUMENTS.get(name, {})
    )
    workload.cell.set_weights(list(weights.values()))
    expected = _FORMULAS[name](state, values.injection, weights)
    result = workload.cell(keras.ops.convert_to_tensor(state), workload.injection)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", _SIZES)
def test_torch_function_equals_its_formula(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchdeq")
    from training.benchmarks import torchdeq_peer

    values = arrays(name, **_SIZES[name])
    inputs = {"injection": values.injection, "target": values.target}
    work = torchdeq_peer.build(name, {**values.weights, **inputs}, torch.float64)
    expected = _FORMULAS[name](
        np.zeros_like(values.injection), values.injection, values.weights
    )
    result = work.function(work.start).detach().numpy()
    if result.ndim == 4:
        result = result.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


def test_benchmark_sizes():
    shapes = {name: arrays(name).injection.shape for name in _SIZES}
    assert shapes == {
        "transformer_layer": (16, 128, 256),
        "conv_block": (16, 32, 32, 64),
        "tiny_mlp": (4096, 1),
    }


def test_named_sizes(monkeypatch):
    large = {"transformer_layer": {"batch": 2, "length": 3, "width": 16, "inner": 24}}
    monkeypatch.setitem(workloads.SIZES, "large", large)
    workload = workloads.build("transformer_layer", sizes="large")
    assert workload.injection.shape == (2, 3, 16)
    assert workload.cell.inner == 24
    assert workloads.sized("tiny_mlp", "large") == {}
    assert workloads.sized("tiny_mlp") == workloads.sized("tiny_mlp", "default") == {}


def test_unknown_workload_is_refused():
    with pytest.raises(ValueError, match="Received: name='mlp'"):
        arrays("mlp")
