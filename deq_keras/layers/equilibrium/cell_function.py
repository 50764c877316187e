"""The function that a solver iterates: a cell with its padding zeroed."""

import weakref

import keras

from deq_keras.layers.equilibrium.cell_check import is_functional
from deq_keras.layers.equilibrium.padding import Masked, masked
from deq_keras.solvers import Splitting
from deq_keras.structure import Nest


class CellFunction:
    """Applies a cell to a state, given everything that is constant during a solve.

    It does not keep the cell alive. Gradient functions of a traced graph refer to it,
    and TensorFlow never frees the graph of a Keras training step.

    Args:
        cell: The cell of a `DEQ` layer.

    Call arguments:
        state: Nest of `(batch, ...)` tensors.
        constant: The injection, or a `Masked` injection.
    """

    def __init__(self, cell: keras.layers.Layer) -> None:
        self._cell = weakref.ref(cell)

    @property
    def cell(self) -> keras.layers.Layer:
        cell = self._cell()
        if cell is None:
            raise ValueError(
                "The gradient of a compiled function needs the cell of its DEQ layer, "
                "and the layer was deleted. Keep a reference to the model for as long "
                "as the function is differentiated."
            )
        return cell

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables that the function reads."""
        return self.cell.variables

    def __call__(self, state: Nest, constant: Nest) -> Nest:
        injection, mask = (
            constant if isinstance(constant, Masked) else Masked(constant, None)
        )
        if is_functional(self.cell):
            return masked(self.cell([state, injection]), mask)
        return masked(self.cell(state, injection), mask)

    def splitting(self, constant: Nest) -> Splitting | None:
        """Returns the operator splitting of the function, or `None`."""
        split = getattr(self.cell, "operator_splitting", None)
        if split is None or isinstance(constant, Masked):
            return None
        return split(constant)
