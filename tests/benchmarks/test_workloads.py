"""The workloads of the benchmarks are the same in Keras, PyTorch and JAX."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import solvers

SIZES = {
    "transformer_layer": {"batch": 2, "length": 5, "width": 16, "inner": 24},
    "conv_block": {"batch": 2, "size": 4, "channels": 16},
    "tiny_mlp": {"batch": 3, "hidden": 7},
    "dense": {"batch": 3, "width": 5},
}


@pytest.fixture(params=SIZES)
def workload(request):
    """Returns a name, a workload with weights that are not 0 or 1, and the weights."""
    random = np.random.default_rng(0)
    work = solvers.build(request.param, SIZES[request.param], "float64")
    weights = {
        key: value + 0.1 * random.standard_normal(value.shape)
        for key, value in work.arrays.items()
        if key not in ("injection", "target")
    }
    work.cell.set_weights(list(weights.values()))
    return request.param, work, weights


# PyTorch with CUDA warns on a machine without a driver.
@pytest.mark.filterwarnings("ignore:CUDA initialization")
def test_torch_function_equals_the_cell(workload):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchdeq")
    from benchmarks import torchdeq_peer

    name, work, weights = workload
    arrays = {**work.arrays, **weights}
    function, _, start, _ = torchdeq_peer.build(name, arrays, torch.float64)
    result = function(start).detach().numpy()
    if result.ndim == 4:
        result = result.transpose(0, 2, 3, 1)
    expected = work.cell(tf.zeros_like(work.injection), work.injection)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


def test_jax_function_equals_the_cell(workload, tmp_path):
    for package in ("jax", "jaxopt", "optimistix"):
        pytest.importorskip(package)
    from benchmarks import jax_peer

    name, work, weights = workload
    if name not in jax_peer._FUNCTIONS:
        pytest.skip("JAX is not measured on it.")
    np.savez(tmp_path / "work.npz", **{**work.arrays, **weights})
    value = jax_peer.make(name, tmp_path / "work.npz", "jax", "evaluate")()
    expected = work.cell(tf.zeros_like(work.injection), work.injection)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
