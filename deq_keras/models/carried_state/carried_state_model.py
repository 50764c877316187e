"""A model that is trained one segment of a search after the other."""

import keras
import tensorflow as tf

from deq_keras.checks import (
    check_integer,
    check_optional_count,
    check_share,
    did_you_mean,
)
from deq_keras.layers import CarryScope
from deq_keras.metrics import TrainingMean
from deq_keras.models.carried_state.carry import Carry
from deq_keras.models.carried_state.search_segment import SearchSegment
from deq_keras.models.carried_state.specs import ExampleSpecs, state_specs
from deq_keras.seeds import SavesRandomState
from deq_keras.solvers import CONVERGED

_CONVERGED = "converged"


@keras.saving.register_keras_serializable(package="deq_keras")
class CarriedStateModel(SavesRandomState, keras.Model):
    """Trains a model segment by segment: every update goes on where the last one came.

    A long search is trained in segments: what the layer's gradient solves in one
    training step, with a loss, and an update of the weights, at its end. The state that
    a segment reaches is where the next one begins, as a constant. The model holds a
    batch of samples in search and their states, and with each step fresh samples take
    the places of as many others (continuous batching).

    * A **step** of `fit` is one segment of `batch_size` samples, and one update.
    * It takes one batch of the dataset, which must be smaller than `batch_size`; its
      samples begin where the layer's `start` says, or, a share of them, where those
      ended whose places they take. They take the places of samples that
      have finished, and if those do not suffice, of those that have had the most
      segments. Samples that have finished and find no successor go on.
    * So an **epoch** is one pass over the dataset: every sample of it is admitted once,
      and none is left out. A sample has on average `batch_size` / (size of the
      dataset's batches) segments: the more hard ones get, the fewer easy ones do.
    * The first step fills the batch with repetitions of its samples.

    Epochs and calls of `fit` follow one another without a break; `reset_carry` begins
    anew. Samples, states and counts are weights that are not trained: they are saved
    and restored with all others, and training that is then given the batches that come
    next goes on as if it had not stopped.
    `evaluate` and `predict` are those of `model`, with whole solves from the start.

    (A stateful layer of Keras also keeps its states, but of places in the batch, until
    a user resets them all: its next batch must continue the samples of the last one.)

    `History` and the progress bar have, besides what `model` would show, `segments`,
    the mean number that samples which left had had, and `finished`, the share of them
    that had finished. Losses and metrics of training are means over all samples in
    search, also those that have just begun.

    Args:
        model: A built `keras.Model` that calls one equilibrium layer, once; trained in
            place.
        examples: Nest of tensors, arrays or `tf.TensorSpec`s `(batch, ...)` of the
            shapes and dtypes that `fit` gets: `(x, y)` or `(x, y, sample_weight)`, such
            as `dataset.element_spec`. All axes but the first must be static.
        batch_size: Integer > 1. How many samples are in search.
        max_segments: Positive integer, or `None` for no limit. A sample has finished
            after so many segments. Defaults to `16`.
        finished: Which samples have finished after a segment: `"converged"`, those that
            the solver's `tol` says; a function from a `SearchSegment` to a Boolean
            tensor `(batch,)`; or `None`, none before `max_segments`. Defaults to
            `"converged"`.
        inherited: Float in [0, 1]. The share of the fresh samples, drawn anew in each
            step, that begin at the state of the sample in whose place they come, most
            often the answer to another problem, so that f sees states that are wrong.
            Defaults to `0.0`.
        seed: Integer, or `None`. Of that draw. Defaults to `None`.
        **kwargs: `name` of the model.

    Call arguments:
        inputs: As `model` takes them.
        training: Boolean.

    Raises:
        ValueError: If `model` does not call one equilibrium layer once, if what `fit`
            gets is not like `examples`, or comes in batches that are not smaller than
            `batch_size`; under a `tf.distribute` strategy of several replicas.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> x, y = np.ones((12, 3), "float32"), np.ones((12, 1), "float32")
    >>> trained = CarriedStateModel(model, (x, y), batch_size=8)
    >>> trained.compile("adam", "mse")
    >>> history = trained.fit(x, y, batch_size=2, epochs=2, verbose=0)
    >>> int(trained.optimizer.iterations)  # 12 / 2 updates an epoch.
    12

    Reference:

    - Jolicoeur-Martineau (2025), "Less is More: Recursive Reasoning with Tiny Networks"
      (segments of which only the state is carried, an update each, and at most 16).
    """

    def __init__(
        self,
        model,
        examples,
        batch_size,
        max_segments=16,
        finished="converged",
        inherited=0.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.batch_size = check_integer("batch_size", batch_size, minimum=2)
        self.max_segments = check_optional_count("max_segments", max_segments)
        self.finished = _checked_rule(finished)
        self.inherited = check_share("inherited", inherited)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.model = model
        self.examples = ExampleSpecs(examples)
        _check_replicas()
        of_batch = self.examples.with_batch_size(self.batch_size)
        self.carry = Carry(of_batch, state_specs(model, of_batch[0]), name="carry")
        self._segments = TrainingMean("segments")
        self._finished = TrainingMean("finished")
        self.built = True

    def reset_carry(self):
        """Forgets the samples in search: the next step begins with fresh ones."""
        self.carry.reset()

    def call(self, inputs, training=None):
        for metric in (self._segments, self._finished):
            metric.is_training = bool(training)
        outputs = self.model(inputs, training=training)
        if training and CarryScope.entered() is not None:
            CarryScope.entered().outputs = outputs
        return outputs

    def train_step(self, data):
        data = _without_none(data)
        self.examples.check(data)
        draw = keras.random.uniform((self.batch_size,), seed=self.seed_generator)
        admitted = self.carry.admit(data, draw < self.inherited)
        self._segments.update_state(admitted.left_after)
        self._finished.update_state(admitted.left_finished)
        with _Step(admitted.state, admitted.goes_on) as step:
            logs = super().train_step(admitted.examples)
        segment = SearchSegment(
            admitted.examples, step.outputs, step.solution, self.carry.num_segments + 1
        )
        self.carry.store(step.state, self._has_finished(segment))
        return logs

    def get_config(self):
        model = keras.saving.serialize_keras_object(self.model)
        model.pop("compile_config", None)  # It is this model that is trained.
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
    def from_config(cls, config):
        objects = ("model", "examples", "finished")
        found = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in objects
        }
        return cls(**{**config, **found})

    def _has_finished(self, segment):
        """Returns which samples have finished, a Boolean tensor `(batch,)`."""
        has_finished = tf.zeros([self.batch_size], tf.bool)
        if self.finished == _CONVERGED:
            has_finished = tf.equal(segment.solution.status, CONVERGED)
        elif self.finished is not None:
            has_finished = _checked_answer(self.finished(segment), self.batch_size)
        if self.max_segments is not None:
            has_finished |= segment.num_segments >= self.max_segments
        return has_finished


class _Step(CarryScope):
    """A training step, which also keeps what the model returned."""

    outputs = None


def _without_none(data):
    """`train_on_batch` gives `None` for weights of samples that it has not."""
    return keras.utils.pack_x_y_sample_weight(
        *keras.utils.unpack_x_y_sample_weight(data)
    )


def _checked_rule(finished):
    if finished is None or callable(finished) or finished == _CONVERGED:
        return finished
    raise ValueError(
        "`finished` must be 'converged', a function from a SearchSegment to a Boolean "
        f"tensor (batch,), or None. Received: finished={finished!r}."
        + did_you_mean(finished, [_CONVERGED])
    )


def _checked_answer(has_finished, batch_size):
    has_finished = tf.convert_to_tensor(has_finished)
    if not has_finished.dtype.is_bool or has_finished.shape != (batch_size,):
        raise ValueError(
            "`finished` must return a Boolean tensor (batch,). Expected: "
            f"shape=({batch_size},), dtype=bool. Received: "
            f"shape={has_finished.shape}, dtype={has_finished.dtype.name}."
        )
    return has_finished


def _check_replicas():
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if num_replicas > 1:
        raise ValueError(
            "The samples in search are those of one device. Make the model outside of "
            f"the strategy. Received: a strategy of {num_replicas} replicas."
        )
