"""The reasoner up to its states."""

import copy
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras_hub.models import Backbone

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import check_sizes
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import DEQ
from deq_keras.models.kerashub import PackagedBackbone
from deq_keras.models.reasoner.reasoner_presets import PRESETS

# The plain steps of training: neither history nor damping. Every position converges.
_SOLVER = solvers.FixedPointIteration(max_iter=160, tol=1e-4, stop_mode="rel_max")
# A random number of steps with gradient after a random number without (Bansal et al.,
# 2022), and noise between them. Without the noise, states of problems larger than the
# training problems keep changing.
_GRADIENT = gradients.TruncatedGradient(
    "uniform", "uniform", max_steps=16, free_fraction=1.0
)


@keras.saving.register_keras_serializable(package="deq_keras")
class ReasonerBackbone(PackagedBackbone, Backbone):
    """Computes an equilibrium state for every position of a problem.

    A `DEQ` of a cell that receives the problem in every evaluation: a `RecallCell` for
    problems of any size, a `MixerCell` or an `AttentionCell` for boards. The model
    trains with few steps, but can take many: larger and harder problems need more
    evaluations than the training problems.

    Args:
        cell: `EquilibriumCell` whose state is a tensor `(batch, *positions, units)`.
        input_size: Tuple. Shape of a problem: `(length, channels)`, `(height, width,
            channels)`, or the input shape of the `encoder`, such as `(rows, columns)`.
            `None` for variable sizes.
        encoder: Optional layer from problems to the inputs of the cell, such as a
            `BoardEmbedding` or `keras.layers.Rescaling`. Defaults to `None`, unchanged
            problems.
        problem_dtype: Dtype of problems, `"int32"` for tokens. Defaults to `"float32"`.
        solver: See `DEQ`. Defaults to `None`: `FixedPointIteration(max_iter=160,
            tol=1e-4, stop_mode="rel_max")`.
        gradient: See `DEQ`. Defaults to `None`: `TruncatedGradient("uniform",
            "uniform", max_steps=16, free_fraction=1.0)`.
        regularizer: See `DEQ`. Defaults to `None`.
        max_iter_jitter: See `DEQ`. Defaults to `0`.
        initial_state: See `DEQ`. Defaults to `"mixed"`.
        dtype: Dtype or policy of the equilibrium layer, which must be the cell's.
            Defaults to `None`, the cell's.
        **kwargs: `name` and `trainable`.

    Call arguments:
        inputs: Tensor of problems, or a dict of it as `"inputs"`, with or without a
            `"padding_mask"`, `(batch, *positions)`, false at padding.

    Input shape:
        `(batch, *input_size)`.

    Output shape:
        `(batch, *positions, units)`; zeros at padding.

    Raises:
        ValueError: If problems have another shape or dtype.

    Example:

    >>> cell = deq_keras.layers.RecallCell(8)
    >>> backbone = ReasonerBackbone(cell, input_size=(None, None, 3))
    >>> backbone.output_shape
    (None, None, None, 8)

    Reference:

    - Bansal et al. (2022), "End-to-end Algorithm Synthesis with Recurrent Networks:
      Logical Extrapolation Without Overthinking".
    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    - Jolicoeur-Martineau (2025), "Less is More: Recursive Reasoning with Tiny
      Networks".
    """

    presets = PRESETS

    def __init__(
        self,
        cell: keras.layers.Layer,
        input_size: tuple[int | None, ...],
        encoder: keras.layers.Layer | None = None,
        problem_dtype: Any = "float32",
        solver: str | Config | solvers.FixedPointSolver | None = None,
        gradient: str | Config | gradients.EquilibriumGradient | None = None,
        regularizer: str | Config | regularizers.EquilibriumRegularizer | None = None,
        max_iter_jitter: int = 0,
        initial_state: str | Config | initial_states.InitialState = "mixed",
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        policy = cell.dtype_policy if dtype is None else keras.dtype_policies.get(dtype)
        input_size = check_sizes("input_size", input_size)
        problem_dtype = keras.backend.standardize_dtype(problem_dtype)
        deq = DEQ(
            cell,
            _SOLVER if solver is None else solver,
            _GRADIENT if gradient is None else gradient,
            regularizer,
            max_iter_jitter=max_iter_jitter,
            initial_state=initial_state,
            dtype=policy,
            name="deq",
        )

        # === Functional Model ===
        problems = keras.Input(input_size, dtype=problem_dtype, name="inputs")
        encoded = problems if encoder is None else encoder(problems)
        super().__init__(inputs=problems, outputs=deq(encoded), dtype=policy, **kwargs)

        # === Config ===
        self.encoder = encoder
        self.deq = deq
        self.input_size = input_size
        self.problem_dtype = problem_dtype

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        problems, padding_mask = _split(inputs)
        dtype = keras.backend.standardize_dtype(problems.dtype)
        if "int" in self.problem_dtype and "int" not in dtype:
            raise ValueError(
                f"'{self.name}' expects problems of integers, the ids of tokens. "
                f"Received: inputs of dtype {dtype}."
            )
        if padding_mask is None:
            return super().call(problems, training=training, mask=mask)
        num_positions = len(self.output.shape) - 2
        expected = tf.TensorShape(problems.shape[: num_positions + 1])
        if not expected.is_compatible_with(padding_mask.shape):
            raise ValueError(
                "`padding_mask` must have an entry for each position, true where it is "
                f"no padding: (batch, *positions) = {expected}. Received: a mask of "
                f"shape {tuple(padding_mask.shape)}."
            )
        return self.deq(self.encode(problems), mask=padding_mask, training=training)

    def encode(self, inputs: Any) -> Any:
        """Returns the inputs of the equilibrium layer `deq`.

        Args:
            inputs: Tensor of problems.
        """
        return inputs if self.encoder is None else self.encoder(inputs)

    def get_config(self) -> Config:
        arguments = arguments_of(self, ReasonerBackbone, self.deq)
        return {**arguments, **super().get_config()}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        config = dict(config)
        dtype = keras.dtype_policies.get(config.pop("dtype", None))
        for name in ("cell", "encoder"):
            layer = copy.deepcopy(config[name])
            # The layers' configs already contain the policies of a map.
            is_one = not isinstance(dtype, keras.dtype_policies.DTypePolicyMap)
            if layer is not None and is_one:
                layer["config"]["dtype"] = keras.dtype_policies.serialize(dtype)
            config[name] = keras.saving.deserialize_keras_object(layer)
        return cls(**config)


def _split(inputs: Any) -> Any:
    """Returns problems, and a mask that is false at padding, or `None`."""
    if not isinstance(inputs, dict):
        return inputs, None
    unknown = set(inputs) - {"inputs", "padding_mask"}
    if unknown or "inputs" not in inputs:
        raise ValueError(
            "A dict must hold problems as `inputs`, and may hold a `padding_mask`. "
            f"Received: the keys {sorted(inputs)}."
        )
    mask = inputs.get("padding_mask")
    return inputs["inputs"], None if mask is None else ops.cast(mask, "bool")
