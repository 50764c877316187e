"""Every gradient passes the checks of plug-ins."""

import pytest

from deq_keras import gradients, solvers
from deq_keras.testing import check_gradient


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", [None, solvers.GMRES])
def test_implicit(adjoint):
    solver = adjoint and adjoint(40, 1e-12)
    check_gradient(lambda: gradients.ImplicitGradient(solver))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, exact",
    [
        (gradients.UnrolledGradient, True),
        (gradients.TruncatedGradient, False),
        (gradients.NeumannGradient, False),
        (gradients.PhantomGradient, False),
    ],
)
def test_other_gradients(make, exact):
    check_gradient(make, exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [gradients.ReversibleGradient, lambda: gradients.UnrolledGradient(checkpoints=6)],
    ids=["reversible", "checkpoints"],
)
def test_gradients_that_repeat_evaluations(make):
    check_gradient(make, differentiates_captured=False)
