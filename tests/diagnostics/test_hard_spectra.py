"""Spectra on which a power method errs: right, or flagged."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics

# What `converged` promises is an expected error of 1e-3.
TOLERANCE = 3e-3


def linear(jacobians, dtype="float64"):
    """f(z)_b = J_b z_b, linearised."""
    matrices = tf.cast(jacobians, dtype)
    return diagnostics.linearize(
        lambda z: tf.linalg.matvec(matrices, z), tf.zeros(tf.shape(matrices)[:2], dtype)
    )


def measured(jacobians, dtype="float64", **arguments):
    return tf.function(
        lambda: diagnostics.spectral_radius(linear(jacobians, dtype), **arguments)
    )()


def blocks(*parts):
    size = sum(len(part) for part in parts)
    matrix, start = np.zeros((size, size)), 0
    for part in parts:
        end = start + len(part)
        matrix[start:end, start:end] = part
        start = end
    return matrix


def padded(matrix, size):
    return blocks(matrix, np.zeros((size - len(matrix),) * 2))


def cycle(size, radius=0.9):
    """`size` eigenvalues on a circle, evenly spaced."""
    return radius * np.roll(np.eye(size), 1, axis=0)


def jordan(value, size):
    return value * np.eye(size) + np.eye(size, k=1)


def rotated(matrix, seed=0):
    """Similar to `matrix`, as normal as it is."""
    noise = np.random.RandomState(seed).normal(size=matrix.shape)
    basis = np.linalg.qr(noise)[0]
    return basis @ matrix @ basis.T


def sheared(matrix, seed=0):
    """Similar to `matrix`, and not normal."""
    size = len(matrix)
    shear = np.eye(size) + 0.6 / np.sqrt(size) * np.triu(np.ones((size, size)))
    return rotated(shear @ matrix @ np.linalg.inv(shear), seed)


def rotation(angle, radius=0.9):
    cosine, sine = radius * np.cos(angle), radius * np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def triangular(size, scale, seed=0):
    random = np.random.RandomState(seed)
    matrix = scale * np.triu(random.normal(size=(size, size)), 1)
    return matrix + np.diag(random.uniform(-0.9, 0.9, size))


def small_spectra(size):
    """Dicts of Jacobians: those that must be found, also in float64 only; and others.
    All of them of one size, so that one batch holds them."""
    found = {f"cycle-{n}": cycle(n) for n in (3, 4, 5, 8, 16)}
    found |= {f"identity-{n}": -0.7 * np.eye(n) for n in (1, 2, 3, 16)}
    found |= {f"pair-{a}": rotation(a) for a in (0.05, 0.7, np.pi / 2, 3.0)}
    found["opposite"] = np.diag([0.9, -0.9, 0.2])
    found["opposite pairs"] = blocks(rotation(0.3), rotation(2.1), [[-0.9]])
    found["cluster"] = rotated(np.diag(0.9 - 0.001 * np.arange(5)))
    found["uniform"] = np.random.RandomState(0).uniform(0, 0.2, (size, size))
    found["rank one"] = np.outer(np.arange(1.0, 5), [0.1, 0.2, -0.1, 0.2])
    found["zero"] = np.zeros((1, 1))
    in_double = {
        f"jordan-{n}({v})": jordan(v, n) for n in (2, 3) for v in (0.1, 0.9, -1.2)
    }
    others = {f"jordan-{n}({v})": jordan(v, n) for n in (8,) for v in (0.1, 0.9, -1.2)}
    others["triangular"] = triangular(size, 3.0)
    others["nilpotent"] = np.triu(np.ones((8, 8)), 1)
    return found, in_double, others


def large_spectra(size):
    def bulk(limit, missing):
        return np.diag(np.linspace(-limit, limit, size - missing))

    found = {f"cycle-{n}": rotated(blocks(cycle(n), bulk(0.7, n))) for n in (3, 5, 8)}
    found |= {f"pair-{a}": sheared(blocks(rotation(a), bulk(0.8, 2))) for a in (0.1, 2)}
    found["opposite"] = sheared(blocks(np.diag([0.9, -0.9]), bulk(0.8, 2)))
    found["cluster"] = rotated(np.diag(0.9 - 0.001 * np.arange(size)))
    found["geometric"] = rotated(np.diag(0.9 ** np.arange(1.0, size + 1)))
    found["identity"] = 0.7 * np.eye(size)
    found["uniform"] = np.random.RandomState(0).uniform(0, 0.01, (size, size))
    random = np.random.RandomState(1).normal(size=(size, size)) / size**0.5
    found["symmetric"] = (random + random.T) / 3
    in_double = {
        f"jordan-{n}({v})": hide(blocks(jordan(v, n), bulk(0.6 * abs(v), n)))
        for n in (2, 3)
        for v in (0.1, 0.9, -1.2)
        for hide in (rotated, sheared)
    }
    others = {
        f"jordan-8({v}) {hide.__name__}": hide(blocks(jordan(v, 8), bulk(0.6 * v, 8)))
        for v in (0.1, 0.5, 0.9, 1.2)
        for hide in (rotated, sheared)
    }
    others |= {f"jordan-{n}": padded(jordan(0.5, n), size) for n in (30, size)}
    others |= {f"triangular-{s}": rotated(triangular(size, s)) for s in (0.1, 1.0)}
    others |= {"cycle": cycle(size), "random": random}
    others["nilpotent"] = np.eye(size, k=1)
    return found, in_double, others


def truth(name, jacobian):
    """Eigenvalues of a hidden Jordan block cannot be computed from its matrix."""
    if name.startswith("jordan"):
        return abs(float(name.split("(")[1].split(")")[0])) if "(" in name else 0.5
    if name.startswith("triangular"):
        size = len(jacobian)
        return np.abs(np.diag(triangular(size, 1.0))).max()
    return 0.0 if name == "nilpotent" else np.abs(np.linalg.eigvals(jacobian)).max()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spectra, size", [(small_spectra, 16), (large_spectra, 200)])
def test_an_estimate_is_right_or_flagged(spectra, size, dtype):
    found, in_double, others = spectra(size)
    zoo = found | in_double | others
    result = measured(np.stack([padded(j, size) for j in zoo.values()]), dtype)
    converged = dict(zip(zoo, result.converged.numpy(), strict=True))
    must = found | in_double if dtype == "float64" else found
    assert [name for name in must if not converged[name]] == []
    values = dict(zip(zoo, result.value.numpy(), strict=True))
    for name, jacobian in zoo.items():
        if converged[name]:
            expected = pytest.approx(truth(name, jacobian), rel=TOLERANCE, abs=1e-30)
            assert values[name] == expected, name
    assert np.all(np.isfinite(list(values.values())))


def test_an_easy_spectrum_costs_few_products():
    jacobian = np.diag(np.append(-0.9, np.linspace(-0.45, 0.45, 199)))
    result = measured(jacobian[None], "float32")
    assert result.converged[0] and result.num_iterations <= 15


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_every_scale(scale):
    """The squares of such numbers leave float32."""
    result = measured(scale * np.diag([1.0, 0.3, 0.2])[None], "float32")
    assert result.converged[0]
    np.testing.assert_allclose(result.value, scale, rtol=1e-3)


def test_a_sample_does_not_depend_on_its_batch(exact_regime):
    """Not on their number, their order, their convergence or their NaN."""
    easy = np.diag(np.append(0.9, np.linspace(-0.4, 0.4, 29)))
    hard = rotated(np.diag(0.9 - 0.001 * np.arange(30)))
    jacobians = np.stack([easy, cycle(30), hard, np.full((30, 30), np.nan)])

    def results(rows):
        linearize = exact_regime(
            lambda: diagnostics.spectral_radius(linear(jacobians[rows]), 45)
        )
        return [tensor.numpy() for tensor in linearize()[:3]]

    together = results([0, 1, 2, 3])
    np.testing.assert_array_equal(together[2], [True, False, True, False])
    for rows in ([0], [2, 0]):
        for alone, batched in zip(results(rows), together, strict=True):
            np.testing.assert_array_equal(alone, batched[rows])


def test_a_jacobian_that_is_not_finite(regime):
    jacobians = np.stack([np.diag([v, 0.5, 0.2]) for v in (np.nan, np.inf, 0.8)])
    result = regime(lambda: diagnostics.spectral_radius(linear(jacobians)))()
    np.testing.assert_array_equal(result.converged, [False, False, True])
    np.testing.assert_array_equal(np.isnan(result.value), [True, True, False])
    np.testing.assert_array_equal(np.isnan(result.residual), [True, True, False])
    # They are not waited for.
    assert result.num_iterations == 3


def test_a_seed_fixes_the_answer():
    jacobian = np.random.RandomState(0).normal(size=(1, 50, 50))
    first, again, other = (measured(jacobian, max_iter=7, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.value, again.value)
    assert first.value[0] != other.value[0]


def test_shapes_known_only_when_it_runs():
    @tf.function(input_signature=[tf.TensorSpec([None, None, None], tf.float64)])
    def radius(jacobians):
        return diagnostics.spectral_radius(linear(jacobians))

    for size in (1, 4):
        result = radius(np.stack([0.5 * np.eye(size), cycle(size, 0.8)]))
        np.testing.assert_allclose(result.value, [0.5, 0.8], rtol=1e-9)
        np.testing.assert_array_equal(result.converged, True)
    assert radius(np.zeros((0, 3, 3))).value.shape == (0,)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"max_iter": 0}, "`max_iter` must be an int of at least 1. Received: max_it"),
        ({"tol": -1.0}, "`tol` must be a finite number >= 0. Received: tol=-1.0"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        diagnostics.spectral_radius(linear(np.eye(2)[None]), **arguments)
