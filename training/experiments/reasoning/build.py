"""Builds tasks, reasoners and their loss from a config."""

import keras
from keras import ops

import deq_keras

from ...data.reasoning import TASKS
from ...errors import InputError, config_errors
from ...runs.components import find_class
from ...runs.phases import set_strategies

_CELLS = {
    "attention_cell": deq_keras.layers.AttentionCell,
    "automaton_cell": deq_keras.layers.AutomatonCell,
    "board_cell": deq_keras.layers.BoardCell,
    "mixer_cell": deq_keras.layers.MixerCell,
    "recall_cell": deq_keras.layers.RecallCell,
}


def build_task(config):
    """Builds a `ReasoningTask` from its name or from a mapping with its arguments.

    Raises:
        InputError: If an argument of the task is invalid.
    """
    make, arguments = find_class("data.task", config, TASKS)
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
    cell, arguments = find_class("model.cell", config.cell, _CELLS)
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


@keras.saving.register_keras_serializable(package="deq_keras_training")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Computes the cross entropy of smoothed integer labels, averaged by weight.

    ```
    q = (1 - s) one_hot(y) + s / C,   loss = sum_i w_i (-q_i . log p_i) / sum_i w_i
    ```

    over all positions i of the batch, with C classes and sample weights w. Walls and
    padding have weight 0, so they do not dilute the gradient of the other positions.

    Args:
        label_smoothing: Float in [0, 1). The smoothing s. Defaults to `0.0`.
        **kwargs: Keyword arguments of `keras.losses.Loss`: `name` and `dtype`.

    Call arguments:
        y_true: Integer labels `(batch, *positions)`.
        y_pred: Logits `(batch, *positions, num_classes)`.
        sample_weight: Optional tensor `(batch, *positions)`.

    Returns:
        Scalar.

    Example:

    >>> loss = SmoothedCrossEntropy(label_smoothing=0.3)
    >>> logits = np.log([[[0.85, 0.15], [0.5, 0.5]]])
    >>> value = loss(np.array([[0, 1]]), logits, sample_weight=np.array([[1.0, 0.0]]))
    >>> round(float(value), 4)  # The entropy of 0.85 and 0.15: no less is possible.
    0.4227

    Reference:

    - Szegedy et al. (2016), "Rethinking the Inception Architecture for Computer Vision"
    """

    def __init__(self, label_smoothing=0.0, **kwargs):
        super().__init__(**{"reduction": "mean_with_sample_weight", **kwargs})
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        num_classes = y_pred.shape[-1]
        targets = ops.one_hot(
            ops.cast(y_true, "int32"), num_classes, dtype=y_pred.dtype
        )
        share = self.label_smoothing
        targets = (1.0 - share) * targets + share / num_classes
        return ops.categorical_crossentropy(targets, y_pred, from_logits=True)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def _input_size(task):
    """Returns the shape of an input; an axis that differs between levels is `None`."""
    least, most = map(task.input_shape, (task.levels.minimum, task.levels.maximum))
    return tuple(
        one if one == other else None for one, other in zip(least, most, strict=True)
    )


def _encoder(units, task, policy):
    """Returns the layer that embeds tokens or centers channels, or `None`."""
    if (task.num_tokens is None) != (units is None):
        expected = "null" if task.num_tokens is None else "an integer"
        kind = "channels" if task.num_tokens is None else "tokens"
        raise InputError(
            f"`model.embedding_units` must be {expected}: the inputs of the task "
            f"`{task.name}` are {kind}. Received: embedding_units={units}."
        )
    if units is None:
        # A part of the model, so that no caller has to know it.
        center = keras.layers.Rescaling(1.0, -task.mean, dtype=policy, name="center")
        return center if task.mean else None
    shape = _input_size(task)
    arguments = {"dtype": policy, "name": "embedding"}
    if len(shape) == 1:
        return keras.layers.Embedding(task.num_tokens, units, **arguments)
    return deq_keras.layers.BoardEmbedding(
        task.num_tokens, units, shape, task.box_shape, **arguments
    )
