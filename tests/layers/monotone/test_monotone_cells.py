"""What holds for every monotone cell."""

import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras import layers, solvers
from deq_keras.core.linearization import linearize
from tests import harness
from tests.regimes import slow

CELLS = {
    "dense": (lambda **kw: layers.MonotoneDenseCell(5, **kw), (3,)),
    "convolutional": (lambda **kw: layers.MonotoneConvCell(3, **kw), (4, 6, 2)),
    "multiscale": (lambda **kw: layers.MonotoneMultiscaleCell((3, 2), **kw), (4, 8, 1)),
}


@pytest.fixture(params=["dense", slow("convolutional"), slow("multiscale")])
def kind(request):
    """Each of the cells in turn."""
    return request.param


def _inputs(kind, batch=4, seed=0):
    shape = CELLS[kind][1]
    return np.random.default_rng(seed).normal(size=(batch, *shape))


def _cell(kind, **kwargs):
    """Returns a cell with weights that are far from a contraction."""
    cell = CELLS[kind][0](**kwargs)
    cell.inject(tf.cast(_inputs(kind), cell.compute_dtype))
    for index, weight in enumerate(cell.trainable_weights):
        draws = np.random.default_rng(10 + index).normal(size=weight.shape)
        weight.assign(draws + (1.0 if weight.shape == () else 0.0))
    return cell


def _state(cell, injection, seed=1):
    random = np.random.default_rng(seed)
    return tree.map_structure(
        lambda leaf: tf.constant(random.normal(size=leaf.shape), leaf.dtype),
        injection["bias"],
    )


def _inner(one, other):
    pairs = zip(tree.flatten(one), tree.flatten(other), strict=True)
    return sum(np.sum(np.asarray(a) * np.asarray(b)) for a, b in pairs)


@pytest.mark.parametrize(
    "kind, m", [("dense", 0.1), ("convolutional", 2.0), ("multiscale", 0.1)]
)
def test_is_strongly_monotone(kind, m):
    cell = _cell(kind, m=m, dtype="float64")
    injection = cell.inject(_inputs(kind))
    for seed in range(3):
        state = _state(cell, injection, seed)
        product = cell.linear(state, injection["operator"])
        complement = tree.map_structure(lambda z, w: z - w, state, product)
        assert _inner(state, complement) >= m * _inner(state, state) * (1 - 1e-12)


@pytest.mark.parametrize(
    "kind, regime",
    [("dense", "xla"), ("convolutional", "graph"), ("multiscale", "eager")],
    indirect=["regime"],
)
def test_resolvent_is_the_inverse(kind, regime):
    cell = _cell(kind, m=0.5, dtype="float64")
    injection = cell.inject(_inputs(kind))
    state, alpha = _state(cell, injection), 0.7
    product = cell.linear(state, injection["operator"])
    shifted = tree.map_structure(lambda z, w: z + alpha * (z - w), state, product)

    def back(shifted):
        return cell.resolvent(injection["operator"], alpha)(shifted)

    harness.assert_close(regime(back)(shifted), state, 1e-10)


def test_distance_is_bounded(kind):
    cell = _cell(kind, dtype="float64")
    inputs = _inputs(kind)
    solver = solvers.PeacemanRachford(max_iter=300, tol=1e-9)
    solution = layers.DEQ(cell, solver=solver, dtype="float64").solve(inputs)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    injection = cell.inject(inputs)
    noise = _state(cell, injection)
    squares = [np.square(leaf).reshape(4, -1).sum(1) for leaf in tree.flatten(noise)]
    for size in (1e-6, 1.0):
        state = tree.map_structure(lambda z, e: z + size * e, solution.value, noise)
        distance = size * np.sqrt(sum(squares))
        bound = cell.distance_bound(state, injection)
        assert bound.shape == (4,)
        assert np.all(bound >= distance)
        assert np.all(bound <= 1e3 * distance)  # It says something.


def test_distance_of_a_cell_that_ignores_its_state():
    """With W = 0, the value is the equilibrium, and the step is the distance."""
    cell = _cell("dense", m=1.0, dtype="float64")
    for weight in cell.trainable_weights:
        if weight.path.startswith("monotone") and "projection" not in weight.path:
            weight.assign(tf.zeros(weight.shape))
    injection = cell.inject(_inputs("dense"))
    state = _state(cell, injection)
    np.testing.assert_array_equal(cell.linear(state, injection["operator"]), 0.0)
    distance = np.linalg.norm(cell(state, injection) - state, axis=1)
    np.testing.assert_allclose(cell.distance_bound(state, injection), distance)


def test_lipschitz_bound(kind):
    cell = _cell(kind, m=0.5, dtype="float64")
    solver = solvers.PeacemanRachford(max_iter=300, tol=1e-9)
    layer = layers.DEQ(cell, solver=solver, dtype="float64")
    inputs = tf.constant(_inputs(kind, batch=1))
    direction = _inputs(kind, batch=1, seed=5)
    step = 1e-3
    before, after = layer.solve(inputs), layer.solve(inputs + step * direction)
    change = tree.map_structure(lambda a, b: a - b, after.value, before.value)
    rate = np.sqrt(_inner(change, change)) / (step * np.linalg.norm(direction))
    assert 0 < rate <= cell.lipschitz_bound()


def test_dead_units_have_a_gradient_of_zero():
    cell = layers.MonotoneDenseCell(4, dtype="float64")
    layer = layers.DEQ(cell, dtype="float64")
    inputs = tf.constant(_inputs("dense"))
    layer(inputs)
    cell.projection.bias.assign([1.0, -100.0, 1.0, 1.0])
    with tf.GradientTape() as tape:
        outputs = layer(inputs, training=True)
        loss = tf.reduce_sum(outputs)
    np.testing.assert_array_equal(outputs[:, 1], 0.0)
    kernel, *rest = tape.gradient(loss, cell.trainable_variables)
    assert all(np.all(np.isfinite(gradient)) for gradient in (kernel, *rest))
    np.testing.assert_array_equal(kernel[:, 1], 0.0)
    assert np.all(np.any(kernel.numpy() != 0, axis=0) == [True, False, True, True])


def test_kernel_of_zeros_has_a_finite_gradient():
    symmetric = layers.MonotoneConvCell(2).tier.symmetric
    symmetric.direction.assign(tf.zeros((3, 3, 2, 2)))
    with tf.GradientTape() as tape:
        kernel = symmetric.kernel()
    np.testing.assert_array_equal(kernel, 0.0)
    gradient = tape.gradient(kernel, symmetric.direction.value)
    assert np.all(np.isfinite(gradient))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["convolutional", "multiscale"])
def test_border_is_zero(kind):
    cell = _cell(kind, activation="sigmoid")
    value = layers.DEQ(cell)(_inputs(kind).astype("float32"))
    for leaf in map(np.asarray, tree.flatten(value)):
        assert np.all(leaf[:, 1:-1, 1:-1] > 0)
        assert np.sum(leaf) == pytest.approx(np.sum(leaf[:, 1:-1, 1:-1]))


@pytest.mark.usefixtures("full_float32")
def test_mixed_precision_solves_in_float32(kind):
    inputs = _inputs(kind).astype("float32")
    full, half = _cell(kind), _cell(kind, dtype="mixed_bfloat16")
    solver = solvers.PeacemanRachford(tol=1e-5, max_iter=200)
    expected = layers.DEQ(full, solver=solver).solve(inputs)
    # The inputs are rounded, and the result; what is between them is not.
    solution = layers.DEQ(half, solver=solver, dtype="mixed_bfloat16").solve(inputs)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    assert solution.residual.dtype == "float32" and np.max(solution.residual) <= 1e-5
    for leaf, other in zip(
        tree.flatten(solution.value), tree.flatten(expected.value), strict=True
    ):
        assert leaf.dtype == "bfloat16"
        np.testing.assert_allclose(tf.cast(leaf, "float32"), other, rtol=0.1, atol=0.1)


def test_defaults_suit_the_cell():
    layer = layers.DEQ(layers.MonotoneDenseCell(3))
    assert isinstance(layer.solver, solvers.PeacemanRachford)
    assert layer.regularizer is None
    assert layer.gradient.assumes_convergence
    plain = layers.DEQ(layers.MonotoneDenseCell(3), gradient="unrolled")
    assert isinstance(plain.solver, solvers.FixedPointIteration)


@pytest.mark.parametrize("kind", CELLS)
def test_resolvent_is_differentiated(kind):
    cell = _cell(kind, dtype="float64")
    injection = cell.inject(_inputs(kind))
    one, other = _state(cell, injection), _state(cell, injection, seed=2)
    resolvent = cell.resolvent(injection["operator"], 0.5)
    transposed = linearize(resolvent, one).vjp(other)
    assert _inner(transposed, one) == pytest.approx(_inner(resolvent(one), other))


def test_bounds_hold_for_a_negative_sign():
    cell = layers.MonotoneConvCell(2, m=0.5, sign=-1, dtype="float64")
    inputs = np.random.default_rng(0).normal(size=(2, 4, 4, 1))
    injection = cell.inject(inputs)
    cell.tier.symmetric.scale.assign(0.2)
    assert 0 < cell.strong_monotonicity() < 0.5
    deq = layers.DEQ(
        cell, solvers.PeacemanRachford(max_iter=100, tol=1e-10), dtype="float64"
    )
    solution = deq.solve(inputs)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    start = cell.initial_state(injection)
    distance = np.sqrt(np.sum(np.square(solution.value - start), axis=(1, 2, 3)))
    assert np.all(distance <= cell.distance_bound(start, injection))
    moved = deq.solve(inputs + 0.1).value
    moved = np.linalg.norm(np.reshape(moved - solution.value, (2, -1)), axis=1)
    assert np.all(moved <= cell.lipschitz_bound() * np.sqrt(16 * 0.1**2))


def _matrix(kernel, height, width, strides=1):
    """Returns the dense matrix of a circular convolution, for states as rows."""
    channels = kernel.shape[2]
    maps = tf.eye(height * width * channels, dtype=kernel.dtype)
    maps = tf.reshape(maps, (-1, height, width, channels))
    product = sum(
        tf.roll(maps, (1 - i, 1 - j), (1, 2)) @ kernel[i, j]
        for i in range(3)
        for j in range(3)
    )
    if strides == 2:
        product = tf.pad(product[:, ::2, ::2], ((0, 0), (0, 1), (0, 1), (0, 0)))
    return tf.reshape(product, (maps.shape[0], -1))


def _dense_operator(cell, sizes):
    """Returns the matrix of W by its definition, for all tiers side by side."""
    tiers = getattr(cell, "tiers", None) or [cell.tier]
    blocks, from_above = [], None
    for tier, size in zip(tiers, sizes, strict=True):
        a, b = (_matrix(k.kernel(), *size) for k in (tier.symmetric, tier.skew))
        identity = tf.eye(a.shape[0], dtype=a.dtype)
        own = (1 - cell.m) * identity - a @ tf.transpose(a) + b - tf.transpose(b)
        if from_above is not None:
            blocks[-1].append(-2.0 * from_above @ tf.transpose(a))
        if tier.down is not None:
            from_above = _matrix(tier.down.kernel(), *size, strides=2)
            own -= from_above @ tf.transpose(from_above)
        blocks.append([own])
    if len(blocks) == 1:
        return blocks[0][0]
    (first, below), (second,) = blocks
    zeros = tf.zeros((second.shape[0], first.shape[1]), first.dtype)
    return tf.concat(
        [tf.concat([first, below], 1), tf.concat([zeros, second], 1)], axis=0
    )


@pytest.mark.parametrize(
    "kind, sizes", [("convolutional", [(6, 8)]), slow("multiscale", [(6, 10), (4, 6)])]
)
def test_gradients_equal_those_of_dense_matrices(kind, sizes):
    """On its support, the equilibrium is a linear system with the matrix W."""
    cell = _cell(kind, m=0.5, dtype="float64")
    solver = solvers.PeacemanRachford(alpha=0.2, max_iter=2000, tol=1e-13)
    layer = layers.DEQ(cell, solver, "implicit", dtype="float64")
    inputs = tf.constant(_inputs(kind))
    weights = [weight.value for weight in cell.trainable_weights]

    def loss(state):
        leaves = [tf.reshape(leaf, (4, -1)) for leaf in tree.flatten(state)]
        return tf.reduce_sum(tf.sin(tf.concat(leaves, 1)))

    with tf.GradientTape() as tape:
        value = layer(inputs, training=True)
        total = loss(value)
    gradients = tape.gradient(total, weights)
    flat = tf.concat([tf.reshape(leaf, (4, -1)) for leaf in tree.flatten(value)], 1)
    support = tf.cast(flat > 0, tf.float64)
    with tf.GradientTape() as tape:
        bias = cell.inject(inputs)["bias"]
        bias = tf.concat([tf.reshape(leaf, (4, -1)) for leaf in tree.flatten(bias)], 1)
        operator = _dense_operator(cell, sizes)
        # z = (z W + b) on the support, and 0 elsewhere.
        system = tf.eye(flat.shape[1], dtype="float64") - operator * support[:, None]
        rows = tf.linalg.solve(system, (bias * support)[..., None], adjoint=True)
        expected = tf.squeeze(rows, -1)
        total = tf.reduce_sum(tf.sin(expected))
    np.testing.assert_allclose(flat, expected, atol=1e-10)
    assert 0.1 < np.mean(support) < 0.9
    for one, other in zip(gradients, tape.gradient(total, weights), strict=True):
        scale = np.max(np.abs(other)) + 1.0
        np.testing.assert_allclose(one / scale, other / scale, atol=1e-10)
