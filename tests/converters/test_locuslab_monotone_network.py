"""Checkpoints of monotone networks, with the values that the reference gave."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.converters.locuslab import load_monotone_network
from deq_keras.layers import MonotoneMultiscaleCell
from deq_keras.testing.problems import relative_error
from tests.golden.arrays import fill, load

EXACT = {"class_name": "peaceman_rachford", "max_iter": 300, "tol": 1e-11}
M = {"fc": 0.5, "conv": 1.0}


def _arrays(name, part):
    return {
        key.removeprefix(f"{name}/{part}"): array
        for key, array in load("monotone").items()
        if key.startswith(f"{name}/{part}")
    }


def _converted(name):
    model = load_monotone_network(
        _arrays(name, "param/"), M[name], solver=EXACT, dtype="float64"
    )
    x = load("monotone")[f"{name}/x"]
    return model, x.transpose(0, 2, 3, 1) if x.ndim == 4 else x


@pytest.mark.parametrize("name", ["fc", pytest.param("conv", marks=pytest.mark.slow)])
def test_logits_and_gradients_of_the_reference(name, tmp_path):
    model, x = _converted(name)
    golden = _arrays(name, "")
    np.testing.assert_allclose(model(x), golden["logits"], atol=1e-7)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x, training=True) * golden["cotangent"])
    kernel = tape.gradient(loss, model.deq.cell.projection.kernel.value).numpy()
    expected = golden["grad/mon.linear_module.U.weight"]
    axes = (2, 3, 1, 0) if expected.ndim == 4 else (1, 0)
    assert relative_error(kernel, expected.transpose(axes)) < 1e-5
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


@pytest.mark.slow
def test_the_images_of_the_sheet():
    x = fill((2, 2, 6, 6), 60, 1.0).transpose(0, 2, 3, 1)
    model = load_monotone_network(
        _sheet_single(), image_size=6, solver=EXACT, dtype="float64"
    )
    expected = [0.643502725, 0.342723396, 0.056079418, -0.376393838]
    np.testing.assert_allclose(model(x)[0, :4], expected, atol=1e-8)


def _tiers(convolution=".weight"):
    filters, random = (2, 3, 4), np.random.default_rng(0)
    shapes = {"U.weight": (2, 1, 3, 3), "U.bias": (2,)}
    for i, c in enumerate(filters):
        shapes |= {f"{name}.{i}{convolution}": (c, c, 3, 3) for name in ("A0", "B0")}
        shapes |= {f"g.{i}": (), f"h.{i}": ()}
    for i, (c, d) in enumerate(zip(filters, filters[1:])):
        shapes |= {f"A_n0.{i}{convolution}": (d, c, 3, 3), f"gn.{i}": ()}
    state_dict = {
        f"mon.linear_module.{name}": np.abs(random.normal(size=shape))
        for name, shape in shapes.items()
    }
    # The classifier reads the last tier, of 12 / 4 + 2 positions a side.
    state_dict["Wout.weight"] = random.normal(size=(10, 4 * 5 * 5))
    return {**state_dict, "Wout.bias": random.normal(size=10)}


@pytest.mark.slow
@pytest.mark.parametrize("convolution", [".weight", ""])
def test_tiers(convolution):
    state_dict = _tiers(convolution)
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
    state_dict = {f"module.{key}": a for key, a in _arrays("fc", "param/").items()}
    model = load_monotone_network(
        state_dict, m=2, solver={"class_name": "forward_backward", "alpha": 0.2}
    )
    assert model.deq.cell.m == 2.0
    assert isinstance(model.deq.solver, solvers.ForwardBackward)
    assert model.deq.solver.alpha == 0.2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"m": 0}, "`m` must be a finite number > 0. Received: m=0"),
        ({"image_size": 4}, "`image_size` is None: a dense.*image_size=4"),
        ({"dtype": "int8"}, "Received: policy=int8"),
        ({"solver": "peaceman"}, "Did you mean 'peaceman_rachford'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_monotone_network(_arrays("fc", "param/"), **arguments)


def test_an_image_size_that_contradicts_the_weights():
    with pytest.raises(ValueError, match=r"one of \[12\]\. Received: image_size=16"):
        load_monotone_network(_tiers(), image_size=16)


def _of_reference(state_dict, m, z):
    """Returns W z of a single convolution, (batch, channels, height, width)."""
    a, b = (
        tf.constant(state_dict[f"mon.linear_module.{name}.weight"]) for name in "AB"
    )
    g, h = (state_dict[f"mon.linear_module.{name}"] for name in "gh")

    def convolved(z, kernel):
        z = tf.concat([z[:, -1:], z, z[:, :1]], 1)
        z = tf.concat([z[:, :, -1:], z, z[:, :, :1]], 2)
        kernel = tf.transpose(kernel / tf.norm(kernel), (2, 3, 1, 0))
        return tf.nn.conv2d(z, kernel, 1, "VALID")

    def transposed(z, kernel):
        kernel = tf.reverse(tf.transpose(kernel, (1, 0, 2, 3)), (2, 3))
        return convolved(z, kernel)

    skew = h * (convolved(z, b) - transposed(z, b))
    return (1 - m) * z - g * transposed(convolved(z, a), a) + skew


def test_a_negative_g_that_leaves_the_operator_monotone(tmp_path):
    name = "mon.linear_module.g"
    state_dict = {**_sheet_single(), name: np.array(-0.003)}
    arguments = {"image_size": 6, "solver": EXACT, "dtype": "float64"}
    with pytest.warns(UserWarning, match="g=-0.003 is negative.*with 0.09.*m=0.1"):
        model = load_monotone_network(state_dict, 0.1, **arguments)
    cell = model.deq.cell
    z = tf.constant(np.random.default_rng(0).normal(size=(1, 8, 8, 3)))
    operator = cell.tier.kernels()
    product = cell.linear(z, operator)
    np.testing.assert_allclose(product, _of_reference(state_dict, 0.1, z), atol=1e-12)
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


def test_a_network_that_is_not_monotone():
    name = "mon.linear_module.g"
    negative = {**_sheet_single(), name: np.array(-1.0)}
    message = r"strongly monotone.*g \|A\|\^2 = -.*Received: m=0.1, .*module.g=-1.0"
    with pytest.raises(ValueError, match=message):
        load_monotone_network(negative, 0.1, image_size=6)
    negative = {**_tiers(), f"{name}.1": np.array(-0.01)}
    with pytest.raises(ValueError, match="g.1 must be >= 0.*root.*-0.01"):
        load_monotone_network(negative)


def test_weights_that_do_not_fit():
    missing = _arrays("fc", "param/")
    del missing["mon.linear_module.A.weight"]
    with pytest.raises(ValueError, match="missing: mon.linear_module.A.weight"):
        load_monotone_network(missing)
    with pytest.raises(ValueError, match="read from mon.linear_module.U.weight"):
        load_monotone_network({"other": np.zeros(3, "float32")})
