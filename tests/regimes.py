"""Which parameters a test takes, where all of them take too long."""

import pytest

from deq_keras import solvers


def slow(*values):
    """Returns values of a parameter, which a slow test takes."""
    return pytest.param(*values, marks=pytest.mark.slow)


XLA_IS_SLOW = pytest.mark.parametrize(
    "regime", ["eager", "graph", slow("xla")], indirect=True
)

ALL_BUT_EAGER_ARE_SLOW = pytest.mark.parametrize(
    "regime", ["eager", slow("graph"), slow("xla")], indirect=True
)

# Every solver and every regime, but not every pair of them.
SOLVERS_IN_TURN = pytest.mark.parametrize(
    "solver_class, regime",
    [
        (solvers.FixedPointIteration, "eager"),
        (solvers.Anderson, "xla"),
        (solvers.Broyden, "graph"),
    ],
    ids=["FixedPointIteration-eager", "Anderson-xla", "Broyden-graph"],
    indirect=True,
)
