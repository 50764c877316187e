"""Compare the equilibria that a model reaches from several initial states."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras import initial_states, solvers
from deq_keras.core.checks import check_integer
from deq_keras.core.random import fold_in
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest, StateStructure
from deq_keras.diagnostics.predictor import Prediction
from deq_keras.diagnostics.subject import single_layer
from deq_keras.initial_states import InitialState
from deq_keras.layers import SolveScope

_OTHER = "other"


class InitialStateComparison(NamedTuple):
    """Results from the model's own initial state (index 0) and from others.

    Attributes:
        alignment: Float tensor `(others, batch)`. The `alignment_score` between the
            equilibrium from each other initial state and the one from the model's own.
        outputs: Nest of tensors `(1 + others, batch, ...)`. Outputs of the model.
        residual: Float tensor `(1 + others, batch)`. See `Solution`.
        converged: Boolean tensor `(1 + others, batch)`. Whether the tolerance was met.
            Without convergence, the alignment does not compare equilibria.
        num_evaluations: Int32 tensor `(1 + others, batch)`. See `Solution`.
    """

    alignment: tf.Tensor
    outputs: Nest
    residual: tf.Tensor
    converged: tf.Tensor
    num_evaluations: tf.Tensor


def compare_initial_states(
    model: keras.layers.Layer,
    inputs: Nest,
    others: Sequence[str | Config | InitialState] = (_OTHER, "zeros", "normal"),
    max_iter: int | None = None,
    seed: int = 0,
) -> InitialStateComparison:
    """Calls a model from its own initial state and from others.

    A model is path independent if it converges to the same state from any state (Anil
    et al., 2022). They measure the alignment with `"other"`: sample i starts at the
    equilibrium of sample i + 1, and the last sample at the equilibrium of the first.

    Args:
        model: A `keras.Model` that calls one `DEQ` layer, or a `DEQ` layer.
        inputs: Inputs of the model.
        others: Sequence of `"other"`, names, config dicts or `InitialState`s. Defaults
            to `("other", "zeros", "normal")`.
        max_iter: Positive integer. Budget of every solve, which must suffice to
            converge. Defaults to `None`, the budget of the model.
        seed: Integer. Seed of random initial states. Defaults to `0`.

    Returns:
        An `InitialStateComparison`.

    Raises:
        ValueError: If the batch has a single sample, or the model does not call exactly
            one `DEQ` layer.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8))
    >>> inputs = np.array([[1.0, 3.0], [2.0, 0.0]], "float32")
    >>> found = deq_keras.diagnostics.compare_initial_states(deq, inputs)
    >>> bool(tf.reduce_min(found.alignment) > 0.99)
    True
    >>> deq_keras.diagnostics.prediction_agreement(found.outputs > 0).numpy()
    array([1., 1.], dtype=float32)

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """
    layer = single_layer(model)
    if isinstance(others, str) or not others:
        raise ValueError(
            "`others` must be a sequence of names, such as ('other', 'normal'). "
            f"Received: others={others!r}."
        )
    sources = [None if one == _OTHER else initial_states.get(one) for one in others]
    seed_of_all = tf.constant([check_integer("seed", seed), 0])

    def solve(state: Nest = None, budget: int | None = max_iter) -> Prediction:
        start = {} if state is None else {layer.name: state}
        with SolveScope(model, budget, initial_states=start) as scope:
            outputs = model(inputs, training=False)
        return Prediction(outputs, scope.solutions)

    predictions = [solve()]
    # The first evaluation of a solve is at its initial state.
    own = solve(budget=1).solution.point
    for i, source in enumerate(sources):
        if source is None:
            state = predictions[0].solution.value
            if tree.flatten(state)[0].shape[0] == 1:
                raise ValueError(
                    "`inputs` must have at least two samples, so that one sample can "
                    "start at the equilibrium of another. Received: a batch of 1."
                )
            state = tree.map_structure(lambda leaf: tf.roll(leaf, -1, axis=0), state)
        else:
            state = source(own, fold_in(seed_of_all, i))
        predictions.append(solve(state))
    solutions = [prediction.solution for prediction in predictions]
    first = solutions[0].value
    return InitialStateComparison(
        tf.stack([alignment_score(first, other.value) for other in solutions[1:]]),
        tree.map_structure(
            lambda *outputs: tf.stack(outputs), *(one.outputs for one in predictions)
        ),
        tf.stack([solution.residual for solution in solutions]),
        tf.stack([solution.status == solvers.CONVERGED for solution in solutions]),
        tf.stack([solution.num_evaluations for solution in solutions]),
    )


def alignment_score(states: Nest, others: Nest) -> tf.Tensor:
    """Returns the cosine similarity of two states of each sample.

    For results from two initial states, this is the asymptotic alignment of Anil et al.
    (2022). It is 1 if both solves found the same state or a positive multiple of it. It
    is also near 1 if all states share a large component: check `prediction_agreement`.

    Args:
        states: Nest of floating-point tensors `(batch, ...)`.
        others: Nest with the same structure and shapes.

    Returns:
        Float tensor `(batch,)`, at least float32. 1 if both states are zero, 0 if
        exactly one is zero.

    Example:

    >>> one, two = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]])
    >>> round(float(deq_keras.diagnostics.alignment_score(one, two)[0]), 3)
    0.96

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """
    structure = StateStructure(states)
    structure.check(others, "`others`")
    one, two = structure.to_matrix(states), structure.to_matrix(others)
    norms = tf.norm(one, axis=1), tf.norm(two, axis=1)
    product = tf.reduce_sum(one * two, axis=1)
    cosine = tf.math.divide_no_nan(product, norms[0] * norms[1])
    are_zero = tf.logical_and(norms[0] == 0, norms[1] == 0)
    return tf.where(are_zero, tf.ones_like(cosine), cosine)


def prediction_agreement(predictions: tf.Tensor) -> tf.Tensor:
    """Returns the fraction of pairs of initial states with the same prediction.

    Args:
        predictions: Integer tensor `(states, batch, ...)`. Predictions from each of at
            least two initial states.

    Returns:
        Float32 tensor `(batch,)` in [0, 1]. Two predictions are the same if they are
        equal at every position.

    Raises:
        ValueError: If there are fewer than two initial states.

    Example:

    >>> predictions = np.array([[[1, 0], [2, 2]], *[[[1, 0], [2, 1]]] * 2])
    >>> deq_keras.diagnostics.prediction_agreement(predictions).numpy().round(3)
    array([1.   , 0.333], dtype=float32)
    """
    predictions = tf.convert_to_tensor(predictions)
    shape = predictions.shape
    if shape.rank < 2 or shape[0] is None or shape[0] < 2:
        raise ValueError(
            "`predictions` must come from at least two initial states, an integer "
            f"tensor (states, batch, ...). Received: shape={shape}."
        )
    axes = list(range(1, shape.rank - 1))
    pairs = [
        tf.reduce_all(tf.equal(one, two), axis=axes)
        for one, two in itertools.combinations(tf.unstack(predictions), 2)
    ]
    return tf.reduce_mean(tf.cast(tf.stack(pairs), tf.float32), axis=0)
