"""Loads models to audit: with one DEQ layer, or saved as cell, encoder and head."""

from typing import NamedTuple

import tensorflow as tf

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
    model = _load("model", path)
    if isinstance(model, deq_keras.models.ReasonerTagger):
        return of_layer(split_reasoner(model))
    ends = [len(getattr(model, name, None) or ()) for name in ("inputs", "outputs")]
    if ends != [1, 1]:
        raise InputError(
            f"{path} must be a functional model of one input and one output. Received: "
            f"a {type(model).__name__}. Save its parts, and name them by --cell, "
            "--encoder and --head."
        )
    try:
        return of_layer(split_model(model))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def assembled(cell, encoder=None, head=None):
    """Returns the `Audited` of a model saved as separate components.

    Its initial state is zero.

    Args:
        cell: Path of a `.keras` file with a functional model from `[state, injection]`
            to the next state.
        encoder: Path of a `.keras` file with a model from inputs to the injection.
            Defaults to `None`, the identity.
        head: Path of a `.keras` file with a model from a state to class scores.
            Defaults to `None`, the identity.

    Raises:
        InputError: If a file cannot be read, or the cell has other inputs.
    """
    loaded = {
        name: path and _load(name, path)
        for name, path in (("cell", cell), ("encoder", encoder), ("head", head))
    }
    _check_cell(cell, loaded["cell"])
    shape, dtype = loaded["cell"].inputs[0].shape, loaded["cell"].outputs[0].dtype

    def zeros(injection):
        like = tf.shape(injection)
        sizes = [like[i] if size is None else size for i, size in enumerate(shape)]
        return tf.zeros(sizes, dtype)

    model = diagnostics.WeightTiedModel(**loaded, initial_state=zeros)
    return Audited(model, solvers.FixedPointIteration())


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


def _load(kind, path):
    check_file(path, f"file of the {kind}")
    return saved_model.load(path, _REMEDY)


def _check_cell(path, cell):
    """Raises `InputError` unless the shape of a cell's state is known, with unknown
    axes from the injection."""
    inputs = getattr(cell, "inputs", None) or ()
    if len(inputs) != 2:
        raise InputError(
            "The cell must be a functional model of two inputs, keras.Model([state, "
            f"injection], next_state). Received: {path}, a {type(cell).__name__} of "
            f"{len(inputs)} inputs."
        )
    state, injection = inputs
    unknown = [axis for axis, size in enumerate(state.shape) if size is None]
    if unknown and unknown[-1] >= len(injection.shape):
        raise InputError(
            "An axis of the state whose size is not known must be one of the "
            f"injection. Received: {path}, a state of shape {state.shape} and an "
            f"injection of shape {injection.shape}."
        )
