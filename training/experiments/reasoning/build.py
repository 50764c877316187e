"""Builds tasks and reasoners from their config."""

import keras

import deq_keras

from ...data.reasoning import TASKS
from ...errors import InputError, config_errors
from ...runs.phases import set_strategies

_CELLS = {
    "attentioncell": deq_keras.layers.AttentionCell,
    "automatoncell": deq_keras.layers.AutomatonCell,
    "boardcell": deq_keras.layers.BoardCell,
    "mixercell": deq_keras.layers.MixerCell,
    "recallcell": deq_keras.layers.RecallCell,
}
_TASKS = {name.replace("_", ""): make for name, make in TASKS.items()}


def build_task(config):
    """Builds a `ReasoningTask` from its name or from a mapping with its arguments.

    Raises:
        InputError: If an argument of the task is invalid.
    """
    make, arguments = _named(_TASKS, config)
    with config_errors("data.task"):
        return make(**arguments)


def build_reasoner(config, task, precision):
    """Builds the `ReasonerTagger` of a task.

    With `gradient: unrolled`, `initial_state: cell` and a `fixed_point_iteration` with
    `max_iter: L` and `tol: null`, the model is an explicit weight-tied network of L
    layers.

    Args:
        config: A `ModelConfig`.
        task: A `ReasoningTask`.
        precision: String. Dtype policy of all layers. Logits are float32.

    Raises:
        InputError: If a component rejects an argument or the shape of its inputs.
    """
    policy = keras.DTypePolicy(precision)
    encoder = _encoder(config.embedding_units, task, policy)
    cell, arguments = _named(_CELLS, config.cell)
    with config_errors("model"):
        backbone = deq_keras.models.ReasonerBackbone(
            cell(**arguments, dtype=policy, name="cell"),
            _input_size(task),
            encoder,
            "float32" if task.num_tokens is None else "int32",
            initial_state=config.initial_state,
        )
    set_strategies(backbone.deq, config, "model")
    return deq_keras.models.ReasonerTagger(backbone, task.num_classes)


def check_iteration(phase):
    """Raises `InputError` unless one solve of a phase yields results at all budgets."""
    with config_errors("model.solver"):
        solver = deq_keras.solvers.get(phase.solver)
    is_one = isinstance(solver, deq_keras.solvers.FixedPointIteration)
    if not is_one or solver.patience is not None:
        raise InputError(
            "The last phase must have a fixed_point_iteration without `patience`: one "
            "solve then shows the answers at all budgets. Received: "
            f"solver={phase.solver!r}."
        )


def _named(factories, config):
    """Returns the constructor of an object and its arguments."""
    if isinstance(config, str):
        config = {"class_name": config}
    arguments = {key: value for key, value in config.items() if key != "class_name"}
    return factories[config["class_name"].replace("_", "").lower()], arguments


def _input_size(task):
    """Returns the shape of an input; an axis that differs between levels is `None`."""
    least, most = map(task.input_shape, (task.levels.minimum, task.levels.maximum))
    return tuple(
        one if one == other else None for one, other in zip(least, most, strict=True)
    )


def _encoder(units, task, policy):
    """Returns the layer that embeds tokens, or `None` for inputs with channels."""
    if (task.num_tokens is None) != (units is None):
        expected = "null" if task.num_tokens is None else "an integer"
        kind = "channels" if task.num_tokens is None else "tokens"
        raise InputError(
            f"`model.embedding_units` must be {expected}: the inputs of the task "
            f"`{task.name}` are {kind}. Received: embedding_units={units}."
        )
    if units is None:
        return None
    shape = _input_size(task)
    arguments = {"dtype": policy, "name": "embedding"}
    if len(shape) == 1:
        return keras.layers.Embedding(task.num_tokens, units, **arguments)
    return deq_keras.layers.BoardEmbedding(
        task.num_tokens, units, shape, task.box_shape, **arguments
    )
