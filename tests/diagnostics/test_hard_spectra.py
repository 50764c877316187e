"""Spectra on which a power method errs."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics
from tests.diagnostics.jacobians import linear, measured
from tests.regimes import slow

pytestmark = pytest.mark.usefixtures("full_float32")

# What `converged` promises is an expected error of 1e-3.
TOLERANCE = 3e-3


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


def triangular(size, scale):
    """A Jacobian that is far from normal, and its radius."""
    random = np.random.RandomState(0)
    diagonal = random.uniform(-0.9, 0.9, size)
    upper = scale * np.triu(random.normal(size=(size, size)), 1)
    return upper + np.diag(diagonal), np.abs(diagonal).max()


def computed(matrix):
    return matrix, np.abs(np.linalg.eigvals(matrix)).max()


def small_spectra(size):
    """Three dicts of Jacobians and their radii: those that must be found, those that
    must be in double precision, and those that may be given up."""
    found = {f"cycle-{n}": (cycle(n), 0.9) for n in (3, 4, 5, 8, 16)}
    found |= {f"identity-{n}": (-0.7 * np.eye(n), 0.7) for n in (1, 2, 3, 16)}
    found |= {f"pair-{a}": (rotation(a), 0.9) for a in (0.05, 0.7, np.pi / 2, 3.0)}
    rest = np.diag([0.8, -0.7, 0.1])
    found |= {
        f"sheared pair-{a}": (sheared(blocks(rotation(a, 1.2), rest)), 1.2)
        for a in (0.05, 0.7, np.pi / 2, 2.2, 3.0)
    }
    found["opposite"] = np.diag([0.9, -0.9, 0.2]), 0.9
    found["opposite pairs"] = blocks(rotation(0.3), rotation(2.1), [[-0.9]]), 0.9
    found["cluster"] = rotated(np.diag(0.9 - 0.001 * np.arange(5))), 0.9
    found["uniform"] = computed(np.random.RandomState(0).uniform(0, 0.2, (size, size)))
    found["rank one"] = np.outer([1.0, 2, 3, 4], [0.1, 0.2, -0.1, 0.2]), 1.0
    found["zero"] = np.zeros((1, 1)), 0.0
    in_double = {f"jordan-2({v})": (jordan(v, 2), abs(v)) for v in (0.9, -1.2)}
    others = {
        f"jordan-{n}({v})": (jordan(v, n), abs(v))
        for n in (2, 3, 6, 8)
        for v in (0.1, 0.9, -1.2)
    }
    others["triangular"] = triangular(size, 3.0)
    others["nilpotent"] = np.triu(np.ones((8, 8)), 1), 0.0
    return found, in_double, others


def large_spectra(size):
    def hidden(block, limit, hide):
        bulk = np.linspace(-limit, limit, size - len(block))
        return hide(blocks(block, np.diag(bulk)))

    random = np.random.RandomState(1).normal(size=(size, size)) / size**0.5
    found = {
        "cycle": (hidden(cycle(5), 0.7, rotated), 0.9),
        "pair": (hidden(rotation(2.0), 0.8, sheared), 0.9),
        "opposite": (hidden(np.diag([0.9, -0.9]), 0.8, sheared), 0.9),
        "cluster": (rotated(np.diag(0.9 - 0.001 * np.arange(size))), 0.9),
        "symmetric": computed((random + random.T) / 3),
    }
    in_double = {"jordan-2": (hidden(jordan(-1.2, 2), 0.7, sheared), 1.2)}
    others = {
        "jordan-6": (hidden(jordan(0.9, 6), 0.5, rotated), 0.9),
        "jordan": (jordan(0.5, size), 0.5),
        "triangular": triangular(size, 1.0),
        "whole cycle": (cycle(size), 0.9),
        "random": computed(random),
        "nilpotent": (np.eye(size, k=1), 0.0),
    }
    return found, in_double, others


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "spectra, size", [(small_spectra, 16), slow(large_spectra, 200)]
)
def test_estimate_is_right_or_not_converged(spectra, size, dtype):
    found, in_double, others = spectra(size)
    zoo = found | others | in_double
    result = measured(np.stack([padded(j, size) for j, _ in zoo.values()]), dtype)
    converged = dict(zip(zoo, result.converged.numpy(), strict=True))
    must = found | in_double if dtype == "float64" else found
    assert [name for name in must if not converged[name]] == []
    values = dict(zip(zoo, result.value.numpy(), strict=True))
    wrong = {
        name: (values[name], radius)
        for name, (_, radius) in zoo.items()
        if converged[name] and not abs(values[name] - radius) <= TOLERANCE * radius
    }
    assert wrong == {}
    assert np.all(np.isfinite(list(values.values())))


def test_easy_spectrum_costs_few_products():
    jacobian = np.diag(np.append(-0.9, np.linspace(-0.45, 0.45, 199)))
    result = measured(jacobian[None], "float32")
    assert result.converged[0] and result.num_iterations <= 15


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_every_scale(scale):
    """The squares of such numbers leave float32."""
    result = measured(scale * np.diag([1.0, 0.3, 0.2])[None], "float32")
    assert result.converged[0]
    np.testing.assert_allclose(result.value, scale, rtol=1e-3)


def test_samples_are_independent():
    """Not on their number, their order, their convergence or their NaN."""
    easy = np.diag(np.append(0.9, np.linspace(-0.4, 0.4, 59)))
    hard = rotated(np.diag(0.9 - 0.001 * np.arange(60)))
    jacobians = np.stack([easy, cycle(60), hard, np.full((60, 60), np.nan)])

    def results(rows):
        result = measured(jacobians[rows], max_iter=45)
        return [tensor.numpy() for tensor in result[:3]]

    together = results([0, 1, 2, 3])
    np.testing.assert_array_equal(together[2], [True, False, True, False])
    for rows in ([0], [2, 0]):
        for alone, batched in zip(results(rows), together, strict=True):
            np.testing.assert_allclose(alone, batched[rows], rtol=1e-9)


def test_non_finite_jacobian():
    jacobians = np.stack([np.diag([v, 0.5, 0.2]) for v in (np.nan, np.inf, 0.8)])
    result = diagnostics.spectral_radius(linear(tf.constant(jacobians)))
    np.testing.assert_array_equal(result.converged, [False, False, True])
    np.testing.assert_array_equal(np.isnan(result.value), [True, True, False])
    np.testing.assert_array_equal(np.isnan(result.residual), [True, True, False])
    # They are not waited for.
    assert result.num_iterations == 3


def test_seed_fixes_the_estimate():
    jacobian = np.random.RandomState(0).normal(size=(1, 50, 50))
    first, again, other = (measured(jacobian, max_iter=7, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.value, again.value)
    assert first.value[0] != other.value[0]


def test_dynamic_shapes():
    for size in (1, 4):
        result = measured(np.stack([0.5 * np.eye(size), cycle(size, 0.8)]))
        np.testing.assert_allclose(result.value, [0.5, 0.8], rtol=1e-9)
        np.testing.assert_array_equal(result.converged, True)
    assert measured(np.zeros((0, 3, 3))).value.shape == (0,)
