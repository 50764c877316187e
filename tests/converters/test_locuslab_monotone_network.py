"""Checkpoints of monotone networks, with the values that the reference gave."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.converters.locuslab import load_monotone_network
from deq_keras.layers import MonotoneMultiscaleCell
from deq_keras.testing.problems import relative_error
from tests.golden.arrays import fill, load, part
from tests.regimes import slow

EXACT = {"class_name": "peaceman_rachford", "max_iter": 300, "tol": 1e-11}
M = {"fc": 0.5, "conv": 1.0}


def _converted(name):
    model = load_monotone_network(
        part("monotone", f"{name}/param/"), M[name], solver=EXACT, dtype="float64"
    )
    x = load("monotone")[f"{name}/x"]
    return model, x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


@pytest.mark.parametrize("name", ["fc", slow("conv")])
def test_logits_and_gradients_of_the_reference(name, tmp_path):
    model, x = _converted(name)
    golden = part("monotone", f"{name}/")
    np.testing.assert_allclose(model(x), golden["logits"], atol=1e-7)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x, training=True) * golden["cotangent"])
    cell = model.deq.cell
    kernels = {"U": cell.projection.kernel.value}
    if name == "fc":
        kernels |= {"A": cell.symmetric.value, "B": cell.skew.value}
    for letter, slope in tape.gradient(loss, kernels).items():
        expected = golden[f"grad/mon.linear_module.{letter}.weight"]
        if letter == "U":
            expected = expected.transpose((2, 3, 1, 0)[-expected.ndim :])
        assert relative_error(slope, expected) < 1e-5
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(restored(x), golden["logits"], atol=1e-7)


def _sheet_single():
    shapes = {
        "U.weight": (3, 2, 3, 3),
        "U.bias": (3,),
        "A.weight": (3, 3, 3, 3),
        "B.weight": (3, 3, 3, 3),
    }
    state_dict = {"g": np.array(1.0), "h": np.array(1.1)}
    for k, (name, shape) in enumerate(shapes.items(), start=2):
        state_dict[name] = fill(shape, k, 0.5)
    state_dict = {f"mon.linear_module.{name}": a for name, a in state_dict.items()}
    return {
        **state_dict,
        "Wout.weight": fill((10, 12), 6, 0.5),
        "Wout.bias": fill((10,), 7, 0.5),
    }


def _tiers():
    filters, random = (2, 3, 4), np.random.default_rng(0)
    shapes = {"U.weight": (2, 1, 3, 3), "U.bias": (2,)}
    for i, c in enumerate(filters):
        shapes |= {f"{name}.{i}.weight": (c, c, 3, 3) for name in ("A0", "B0")}
        shapes |= {f"g.{i}": (), f"h.{i}": ()}
    for i, (c, d) in enumerate(zip(filters, filters[1:])):
        shapes |= {f"A_n0.{i}.weight": (d, c, 3, 3), f"gn.{i}": ()}
    state_dict = {
        f"mon.linear_module.{name}": np.abs(random.normal(size=shape))
        for name, shape in shapes.items()
    }
    # The classifier reads the last tier, of 12 / 4 + 2 positions a side.
    state_dict["Wout.weight"] = random.normal(size=(10, 4 * 5 * 5))
    return {**state_dict, "Wout.bias": random.normal(size=10)}


@pytest.mark.slow
def test_tiers():
    state_dict = _tiers()
    model = load_monotone_network(state_dict)
    assert isinstance(model.deq.cell, MonotoneMultiscaleCell)
    assert model.input_shape == (None, 12, 12, 1)
    assert model.count_params() == sum(array.size for array in state_dict.values())
    scale = model.deq.cell.tiers[1].down.scale
    np.testing.assert_allclose(scale**2, state_dict["mon.linear_module.gn.1"], 1e-6)
    last = state_dict["Wout.weight"].reshape(10, 4, 5, 5)[3, 2, 1, 4]
    kernel = tf.reshape(model.classifier.kernel, (5, 5, 4, 10))
    np.testing.assert_allclose(kernel[1, 4, 2, 3], last, 1e-6)


def test_arguments():
    state_dict = {
        f"module.{key}": a for key, a in part("monotone", "fc/param/").items()
    }
    model = load_monotone_network(
        state_dict, m=2, solver={"class_name": "forward_backward", "alpha": 0.2}
    )
    assert model.deq.cell.m == 2.0
    assert isinstance(model.deq.solver, solvers.ForwardBackward)
    assert model.deq.solver.alpha == 0.2


def test_negative_g_of_a_monotone_operator(tmp_path):
    name = "mon.linear_module.g"
    state_dict = {**_sheet_single(), name: np.array(-0.003)}
    arguments = {"image_size": 6, "solver": EXACT, "dtype": "float64"}
    with pytest.warns(UserWarning, match="g=-0.003"):
        model = load_monotone_network(state_dict, 0.1, **arguments)
    cell = model.deq.cell
    z = tf.constant(np.random.default_rng(0).normal(size=(1, 8, 8, 3)))
    operator = cell.inject(tf.zeros((1, 6, 6, 2)))["operator"]
    product = cell.linear(z, operator)
    inverse = cell.resolvent(operator, 0.5)
    np.testing.assert_allclose(inverse(z + 0.5 * (z - product)), z, atol=1e-10)
    bound = float(cell.strong_monotonicity())
    form = np.eye(8 * 8 * 3).reshape(-1, 8, 8, 3)
    form = (form - cell.linear(tf.constant(form), operator)).numpy().reshape(192, 192)
    eigenvalues = np.linalg.eigvalsh((form + form.T) / 2)
    np.testing.assert_allclose(eigenvalues.min(), bound, rtol=1e-6)
    assert cell.lipschitz_bound() == pytest.approx(cell.input_norm() / bound)
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras").deq.cell
    assert float(restored.strong_monotonicity()) == bound


def test_network_that_is_not_monotone_raises():
    name = "mon.linear_module.g"
    negative = {**_sheet_single(), name: np.array(-1.0)}
    with pytest.raises(ValueError, match="monotone.*Received"):
        load_monotone_network(negative, 0.1, image_size=6)
    negative = {**_tiers(), f"{name}.1": np.array(-0.01)}
    with pytest.raises(ValueError, match="g.1 .*-0.01"):
        load_monotone_network(negative)


def test_other_weights_raise():
    missing = part("monotone", "fc/param/")
    del missing["mon.linear_module.A.weight"]
    with pytest.raises(ValueError, match="mon.linear_module.A.weight"):
        load_monotone_network(missing)
    with pytest.raises(ValueError, match="mon.linear_module.U.weight"):
        load_monotone_network({"other": np.zeros(3, "float32")})
    with pytest.raises(ValueError, match="image_size"):
        load_monotone_network(_tiers(), image_size=16)
