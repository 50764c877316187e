"""Solvers of fixed-point problems z = f(z)."""

import keras

from deq_keras.core import serialization
from deq_keras.core.problem import FixedPointFunction, FixedPointProblem
from deq_keras.core.request import LoopOptions, SolveRequest
from deq_keras.core.serialization import Config
from deq_keras.solvers.aitken import Aitken
from deq_keras.solvers.anderson import Anderson
from deq_keras.solvers.broyden import Broyden
from deq_keras.solvers.fixed_point_iteration import FixedPointIteration
from deq_keras.solvers.linear import GMRES, BiCGStab, LinearSolver
from deq_keras.solvers.operator_splitting import (
    ForwardBackward,
    OperatorSplitting,
    PeacemanRachford,
)
from deq_keras.solvers.solution import (
    CONVERGED,
    DIVERGED,
    MAX_ITER,
    Solution,
)
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.splitting import Splitting
from deq_keras.solvers.stopping import Evaluation

__all__ = [
    "ALL_OBJECTS",
    "CONVERGED",
    "DIVERGED",
    "GMRES",
    "MAX_ITER",
    "Aitken",
    "Anderson",
    "BiCGStab",
    "Broyden",
    "Evaluation",
    "FixedPointFunction",
    "FixedPointIteration",
    "FixedPointProblem",
    "FixedPointSolver",
    "ForwardBackward",
    "LinearSolver",
    "LoopOptions",
    "OperatorSplitting",
    "PeacemanRachford",
    "Solution",
    "SolveRequest",
    "Splitting",
    "deserialize",
    "get",
    "serialize",
]

ALL_OBJECTS = (
    FixedPointIteration,
    Aitken,
    Anderson,
    Broyden,
    ForwardBackward,
    PeacemanRachford,
    GMRES,
    BiCGStab,
)


def get(identifier: str | Config | FixedPointSolver) -> FixedPointSolver:
    """Returns a solver from a name, a config dict or an instance.

    Args:
        identifier: `"fixed_point_iteration"`, `"aitken"`, `"anderson"`, `"broyden"`,
            `"forward_backward"`, `"peaceman_rachford"`, `"gmres"`, `"bicgstab"`; a
            dict like `{"class_name": "Anderson", "max_iter": 12}` or from `serialize`;
            or a `FixedPointSolver`, which is returned unchanged.

    Raises:
        ValueError: For an unknown name or argument.
    """
    aliases = {"bicgstab": BiCGStab}
    return serialization.get(
        identifier, FixedPointSolver, ALL_OBJECTS, "solver", aliases
    )


def get_fixed_point_solver(
    identifier: str | Config | FixedPointSolver,
) -> FixedPointSolver:
    """Returns a solver of a layer, which a `LinearSolver` cannot be.

    Args:
        identifier: See `get`.

    Raises:
        ValueError: For an unknown name or argument, or a linear solver.
    """
    nonlinear = tuple(one for one in ALL_OBJECTS if not issubclass(one, LinearSolver))
    is_name = isinstance(identifier, str)
    linear = {"bicgstab", *serialization.registry(set(ALL_OBJECTS) - set(nonlinear))}
    if is_name and identifier not in linear:
        # The message of an unknown name must not offer linear solvers.
        return serialization.get(identifier, FixedPointSolver, nonlinear, "solver")
    solver = get(identifier)
    if isinstance(solver, LinearSolver):
        raise ValueError(
            f"{type(solver).__name__} solves only the adjoint equation. Use it as "
            "gradient=ImplicitGradient(solver=...), and Anderson or Broyden as the "
            f"solver of the layer. Received: solver={solver!r}."
        )
    return solver


def serialize(solver: FixedPointSolver) -> Config:
    """Returns the config dict of a solver, for `deserialize`."""
    return keras.saving.serialize_keras_object(solver)


def deserialize(config: str | Config) -> FixedPointSolver:
    """Returns the solver of a config dict."""
    return get(config)
