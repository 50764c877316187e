"""What the configs of studies may say of the equilibrium layer."""

from dataclasses import dataclass
from typing import Any

from ..config.component_fields import (
    gradient_field,
    initial_state_field,
    regularizer_field,
    solver_field,
)

LAYER_DEFAULT = "default"


@dataclass(frozen=True)
class EquilibriumConfig:
    """The arguments of `DEQ` besides the cell; `default` leaves one out.

    Args:
        solver: name of a solver, alone or with arguments.
        gradient: name of a gradient, alone or with arguments.
        regularizer: name of a regularizer, alone or with arguments; null for
            none.
        initial_state: Name of an initial state, alone or with arguments.
    """

    solver: Any = solver_field(LAYER_DEFAULT, LAYER_DEFAULT)
    gradient: Any = gradient_field(LAYER_DEFAULT, LAYER_DEFAULT)
    regularizer: Any = regularizer_field(LAYER_DEFAULT, LAYER_DEFAULT)
    initial_state: Any = initial_state_field(LAYER_DEFAULT, LAYER_DEFAULT)
