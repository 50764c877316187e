"""Training of long solves in segments, with continuous batching."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import (
    check_fraction,
    check_integer,
    check_optional_count,
    did_you_mean,
)
from deq_keras.core.random import SavesRandomState, next_seed, uniform
from deq_keras.core.structure import where_rows
from deq_keras.layers import SolveScope
from deq_keras.metrics import StepMean
from deq_keras.models.continuous_batching.carry import (
    Carry,
    ExampleSpecs,
    state_specs,
)
from deq_keras.solvers import CONVERGED, Solution

_CONVERGED = "converged"


class SolveSegment(NamedTuple):
    """Inputs and results of one training step of a `ContinuousBatchingModel`.

    Attributes:
        examples: Nest of tensors `(batch, ...)`: `(x, y)` or `(x, y, sample_weight)`.
        outputs: Nest of tensors `(batch, ...)`. Outputs of the model.
        solution: The `deq_keras.solvers.Solution` of the layer.
        num_segments: Int32 tensor `(batch,)`. Number of segments of each sample,
            including this one.
    """

    examples: Any
    outputs: Any
    solution: Solution
    num_segments: tf.Tensor


@keras.saving.register_keras_serializable(package="deq_keras")
class ContinuousBatchingModel(SavesRandomState, keras.Model):
    """Trains a model in segments: every update continues from the last states.

    A long solve is trained in segments: one training step runs the solve of the layer's
    gradient, computes a loss at its end, and updates the weights. The next segment
    starts at the state of the last one, as a constant. The model holds a batch of
    samples and their states, and in each step fresh samples replace as many others
    (continuous batching).

    * A **step** of `fit` is one segment of `batch_size` samples, and one update.
    * It takes one batch of the dataset, which must be smaller than `batch_size`. The
      fresh samples start at the layer's `initial_state`; a fraction `inherited` of them
      starts at the state of the sample that it replaces. Fresh samples replace samples
      that have finished first, and then the samples with the most segments. A finished
      sample that is not replaced continues.
    * An **epoch** is one pass over the dataset: it admits every sample once. A sample
      has on average `batch_size` / (size of the dataset's batches) segments; the more
      segments hard samples get, the fewer remain for easy ones.
    * The first step fills the batch with repetitions of its samples.

    Each epoch and call of `fit` continues the previous one; `reset_carry` removes all
    samples. Samples, states and counts are non-trainable weights, which are saved and
    restored with all others: a restored model that receives the next batches trains as
    if it had not been interrupted. `evaluate` and `predict` call `model` with whole
    solves from the initial state.

    (A stateful Keras layer also keeps its states, but for each place in the batch until
    a user resets all of them: its next batch must continue the same samples.)

    `History` and the progress bar show, in addition to the logs of `model`, `segments`,
    the mean number of segments of the replaced samples, and `finished`, the fraction of
    them that had finished. Losses and metrics of training are means over all samples
    in the batch, including those that have just started.

    Args:
        model: A built `keras.Model` that calls one equilibrium layer, once; trained in
            place.
        examples: Nest of tensors, arrays or `tf.TensorSpec`s `(batch, ...)` of the
            shapes and dtypes that `fit` receives: `(x, y)` or `(x, y, sample_weight)`,
            such as `dataset.element_spec`. All axes except the first must be static.
        batch_size: Integer > 1. Number of samples in the batch.
        max_segments: Positive integer, or `None` for no limit. A sample has finished
            after this number of segments. Defaults to `16`.
        finished: Rule for samples that have finished after a segment: `"converged"`
            (the solver's `tol` is met), a function from a `SolveSegment` to a Boolean
            tensor `(batch,)`, or `None` (only `max_segments` counts). Defaults to
            `"converged"`.
        inherited: Float in [0, 1]. Fraction of the fresh samples, drawn in each step,
            that start at the state of the sample that they replace. This state is
            usually the solution of another problem, so f also trains on wrong states.
            Defaults to `0.0`.
        seed: Integer, or `None`. Seed of that draw. Defaults to `None`.
        **kwargs: `name` of the model.

    Call arguments:
        inputs: Inputs of `model`.
        training: Boolean.

    Raises:
        ValueError: If `model` does not call one equilibrium layer once, if the data of
            `fit` differ from `examples` or come in batches that are not smaller than
            `batch_size`, or under a `tf.distribute` strategy of several replicas.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> x, y = np.ones((12, 3), "float32"), np.ones((12, 1), "float32")
    >>> trained = ContinuousBatchingModel(model, (x, y), batch_size=8)
    >>> trained.compile("adam", "mse")
    >>> history = trained.fit(x, y, batch_size=2, epochs=2, verbose=0)
    >>> int(trained.optimizer.iterations)  # 12 / 2 updates an epoch.
    12

    Reference:

    - Jolicoeur-Martineau (2025), "Less is More: Recursive Reasoning with Tiny Networks"
      (at most 16 segments, one update each, of which only the state is carried).
    """

    def __init__(
        self,
        model: keras.Model,
        examples: Any,
        batch_size: int,
        max_segments: int | None = 16,
        finished: str | Callable[[SolveSegment], tf.Tensor] | None = "converged",
        inherited: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch_size = check_integer("batch_size", batch_size, minimum=2)
        self.max_segments = check_optional_count("max_segments", max_segments)
        if not (finished is None or callable(finished) or finished == _CONVERGED):
            raise ValueError(
                "`finished` must be 'converged', a function from a SolveSegment to a "
                f"Boolean tensor (batch,), or None. Received: finished={finished!r}."
                + did_you_mean(finished, [_CONVERGED])
            )
        self.finished = finished
        self.inherited = check_fraction("inherited", inherited)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.model = model
        self.examples = ExampleSpecs(examples)
        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if num_replicas > 1:
            raise ValueError(
                "The running batch is on one device. Create the model outside of the "
                f"strategy. Received: a strategy of {num_replicas} replicas."
            )
        of_batch = self.examples.with_batch_size(self.batch_size)
        self._layer_name, state = state_specs(model, of_batch[0])
        self.carry = Carry(of_batch, state, name="carry")
        self._outputs: Any = None
        self._segments = StepMean("segments")
        self._finished = StepMean("finished")
        self.built = True

    def reset_carry(self) -> None:
        """Removes all samples: the next step starts with fresh samples."""
        self.carry.reset()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        for metric in (self._segments, self._finished):
            metric.is_updated = bool(training)
        outputs = self.model(inputs, training=training)
        self._outputs = outputs if training else None
        return outputs

    def train_step(self, data: Any) -> dict[str, Any]:
        # `train_on_batch` passes `None` instead of sample weights: drop it.
        data = keras.utils.unpack_x_y_sample_weight(data)
        data = keras.utils.pack_x_y_sample_weight(*data)
        self.examples.check(data)
        draw = uniform((self.batch_size,), next_seed(self.seed_generator))
        admitted = self.carry.admit(data, draw < self.inherited)
        self._segments.update_state(admitted.replaced_segments)
        self._finished.update_state(admitted.replaced_finished)
        # A sample that does not continue starts at the layer's initial state, as
        # samples with a non-finite state do.
        nan = tree.map_structure(
            lambda leaf: tf.fill(tf.shape(leaf), tf.constant(float("nan"), leaf.dtype)),
            admitted.state,
        )
        state = where_rows(admitted.continues, admitted.state, nan)
        name = self._layer_name
        # Keras calls the model inside `super().train_step`. The scope passes the states
        # to the layer, and records the solution from which the next segment continues.
        with SolveScope(self.model, initial_states={name: state}) as scope:
            logs = super().train_step(admitted.examples)
        outputs, self._outputs = self._outputs, None
        if len(scope.solutions) != 1:
            raise ValueError(
                "A state is carried by one equilibrium layer that is called once in a "
                f"training step. Received: the calls {list(scope.solutions)}."
            )
        solution = scope.solutions[name]
        segment = SolveSegment(
            admitted.examples, outputs, solution, self.carry.num_segments + 1
        )
        self.carry.store(solution.value, self._has_finished(segment))
        return logs

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        model.pop("compile_config", None)  # Only this model is trained.
        return {
            "name": self.name,
            "model": model,
            "examples": self.examples.get_config(),
            "batch_size": self.batch_size,
            "max_segments": self.max_segments,
            "finished": keras.saving.serialize_keras_object(self.finished),
            "inherited": self.inherited,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ContinuousBatchingModel":
        return cls(**keras.saving.deserialize_keras_object(config))

    def _has_finished(self, segment: SolveSegment) -> tf.Tensor:
        """Returns a mask of samples that have finished, Boolean `(batch,)`."""
        has_finished = tf.zeros([self.batch_size], tf.bool)
        if self.finished == _CONVERGED:
            has_finished = tf.equal(segment.solution.status, CONVERGED)
        elif callable(self.finished):
            has_finished = tf.convert_to_tensor(self.finished(segment))
            shape, dtype = has_finished.shape, has_finished.dtype
            if not dtype.is_bool or shape != (self.batch_size,):
                raise ValueError(
                    "`finished` must return a Boolean tensor (batch,). Expected: "
                    f"shape=({self.batch_size},), dtype=bool. Received: "
                    f"shape={shape}, dtype={dtype.name}."
                )
        if self.max_segments is not None:
            has_finished |= segment.num_segments >= self.max_segments
        return has_finished
