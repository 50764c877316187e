"""The solvers under test."""

import pytest

from deq_keras import solvers

SOLVERS = (solvers.FixedPointIteration, solvers.Anderson, solvers.Broyden)


@pytest.fixture(params=SOLVERS, ids=lambda cls: cls.__name__)
def solver_class(request):
    """Each of the solver classes in turn."""
    return request.param
