"""Loads models with one DEQ layer to audit."""

from typing import NamedTuple

import deq_keras
from deq_keras import diagnostics, solvers

from ...errors import InputError
from ...files import saved_model
from ...files.input_file import check_file
from ..readout import split_model, split_reasoner

_REMEDY = "Save the model again, with model.save('NAME.keras')."


class Audited(NamedTuple):
    """A model prepared for `audit`.

    Attributes:
        model: The `WeightTiedModel`.
        solver: The `FixedPointIteration` for the audit.
        reach: Positive integer or `None`. Number of positions that information travels
            per evaluation, `None` if unknown.
    """

    model: diagnostics.WeightTiedModel
    solver: solvers.FixedPointIteration
    reach: int | None = None


def of_layer(opened):
    """Returns the `Audited` of an `EncoderSolverHead`.

    It has the layer's initial state, and the tolerance and residual of the layer's
    solver. If this solver is a fixed-point iteration, it also has its damping.
    """
    layer = opened.layer
    solver = layer.solver
    is_iteration = isinstance(solver, solvers.FixedPointIteration)
    return Audited(
        diagnostics.WeightTiedModel(
            _CellOfLayer(layer), opened.encode, opened.classify
        ),
        solvers.FixedPointIteration(
            tol=solver.tol,
            stop_mode=solver.stop_mode,
            damping=solver.damping if is_iteration else 1.0,
        ),
        getattr(layer.cell, "reach", None),
    )


def opened(path):
    """Returns the `Audited` of a saved model with one DEQ layer.

    Args:
        path: Path of a `.keras` file.

    Raises:
        InputError: If the file does not exist, or it is neither a `ReasonerTagger` nor
            a functional model with one input, one output and one DEQ layer.
    """
    check_file(path, "file of the model")
    model = saved_model.load(path, _REMEDY)
    if isinstance(model, deq_keras.models.ReasonerTagger):
        return of_layer(split_reasoner(model))
    ends = [len(getattr(model, name, None) or ()) for name in ("inputs", "outputs")]
    if ends != [1, 1]:
        raise InputError(
            f"{path} must be a functional model of one input and one output. Received: "
            f"a {type(model).__name__}."
        )
    try:
        return of_layer(split_model(model))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


class _CellOfLayer:
    """The cell of a DEQ layer, whose injection includes the layer's initial state."""

    def __init__(self, layer):
        self._layer = layer
        self._parts = diagnostics.WeightTiedModel(layer.cell)

    def inject(self, inputs):
        problem = self._layer.problem(inputs)
        return problem.injection, self._layer.request(problem).initial_state

    def initial_state(self, injection):
        return injection[1]

    def __call__(self, state, injection):
        return self._parts.step(state, injection[0])
