"""Compare the equilibria that a model reaches from several initial states."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras import initial_states, solvers
from deq_keras.core.checks import check_integer
from deq_keras.core.random import fold_in
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest, StateStructure
from deq_keras.diagnostics.weight_tied_model import WeightTiedModel
from deq_keras.initial_states import InitialState
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest

_OTHER = "other"


class InitialStateComparison(NamedTuple):
    """Equilibria from the model's own initial state (index 0) and from others.

    Attributes:
        alignment: Float tensor `(others, batch)`. The `alignment_score` between the
            equilibrium from each other initial state and the one from the model's own.
        answers: Int32 tensor `(1 + others, batch, ...)`. Predicted classes.
        residual: Float tensor `(1 + others, batch)`. See `Solution`.
        converged: Boolean tensor `(1 + others, batch)`. Whether the tolerance was met.
            Without convergence, the alignment does not compare equilibria.
        num_evaluations: Int32 tensor `(1 + others, batch)`. See `Solution`.
        trace: Float tensor `(1 + others, max_iter, batch)`. Residual of every
            evaluation, NaN after a sample's last. Shows whether the residual of an
            unconverged sample was still decreasing.
        value: Nest of tensors `(batch, ...)`. The equilibrium from the model's own
            initial state.
    """

    alignment: tf.Tensor
    answers: tf.Tensor
    residual: tf.Tensor
    converged: tf.Tensor
    num_evaluations: tf.Tensor
    trace: tf.Tensor
    value: Nest


def compare_initial_states(
    model: WeightTiedModel,
    inputs: Nest,
    others: Sequence[str | Config | InitialState] = (_OTHER, "zeros", "normal"),
    solver: str | Config | FixedPointSolver = "fixed_point_iteration",
    seed: int = 0,
) -> InitialStateComparison:
    """Solves from the model's own initial state and from others.

    A model is path independent if it converges to the same state from any state (Anil
    et al., 2022). They measure the alignment with `"other"`: sample i starts at the
    equilibrium of sample i + 1, and the last sample at the equilibrium of the first.

    Args:
        model: A `WeightTiedModel`.
        inputs: Inputs of the model's encoder.
        others: Sequence of `"other"`, names, config dicts or `InitialState`s. Defaults
            to `("other", "zeros", "normal")`.
        solver: A name, a config dict or a `FixedPointSolver`, usually the model's own.
            Its budget must suffice to converge. Defaults to `"fixed_point_iteration"`.
        seed: Integer. Seed of random initial states. Defaults to `0`.

    Returns:
        An `InitialStateComparison`.

    Raises:
        ValueError: If the batch has a single sample.

    Example:

    >>> model = deq_keras.diagnostics.WeightTiedModel(lambda z, u: 0.5 * z + u)
    >>> inputs = np.array([[1.0, 3.0], [2.0, 0.0]], "float32")
    >>> comparison = deq_keras.diagnostics.compare_initial_states(model, inputs)
    >>> bool(tf.reduce_min(comparison.alignment) > 0.99)
    True
    >>> deq_keras.diagnostics.answer_agreement(comparison.answers).numpy()
    array([1., 1.], dtype=float32)

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """
    solver = solvers.get(solver)
    checked = _checked(others)
    seed_of_all = tf.constant([check_integer("seed", seed), 0])
    injection = model.inject(inputs)
    own = model.initial_state(injection)

    def solve(state: Nest) -> Solution:
        return solver.solve(
            lambda state: model.step(state, injection), SolveRequest(state)
        )

    solutions = [solve(own)]
    for i, other in enumerate(checked):
        if other is None:
            state = _next_samples(solutions[0].value)
        else:
            state = other(own, fold_in(seed_of_all, i))
        solutions.append(solve(state))
    first = solutions[0].value
    return InitialStateComparison(
        tf.stack([alignment_score(first, other.value) for other in solutions[1:]]),
        tf.stack([model.answer(solution.value) for solution in solutions]),
        tf.stack([solution.residual for solution in solutions]),
        tf.stack([solution.status == solvers.CONVERGED for solution in solutions]),
        tf.stack([solution.num_evaluations for solution in solutions]),
        tf.stack([solution.trace for solution in solutions]),
        first,
    )


def _checked(
    identifiers: Sequence[str | Config | InitialState],
) -> list[InitialState | None]:
    """Returns the initial states, with `None` for the equilibrium of another sample."""
    if isinstance(identifiers, str) or not identifiers:
        raise ValueError(
            "`others` must be a sequence of names, such as ('other', 'normal'). "
            f"Received: others={identifiers!r}."
        )
    return [None if one == _OTHER else initial_states.get(one) for one in identifiers]


def _next_samples(state: Nest) -> Nest:
    batch_size = tree.flatten(state)[0].shape[0]
    if batch_size == 1:
        raise ValueError(
            "`inputs` must have at least two samples, so that one sample can start at "
            "the equilibrium of another. "
            "Received: a batch of 1."
        )
    return tree.map_structure(lambda leaf: tf.roll(leaf, -1, axis=0), state)


def alignment_score(states: Nest, others: Nest) -> tf.Tensor:
    """Returns the cosine similarity of two states of each sample.

    For results from two initial states, this is the asymptotic alignment of Anil et al.
    (2022). It is 1 if both solves found the same state or a positive multiple of it. It
    is also near 1 if all states share a large component, so check `answer_agreement`
    too.

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


def answer_agreement(answers: tf.Tensor) -> tf.Tensor:
    """Returns the fraction of pairs of initial states with the same prediction.

    Args:
        answers: Integer tensor `(starts, batch, ...)`. Predictions from each of at
            least two initial states.

    Returns:
        Float32 tensor `(batch,)` in [0, 1]. Two predictions are the same if they are
        equal at every position.

    Raises:
        ValueError: If there are fewer than two initial states.

    Example:

    >>> answers = np.array([[[1, 0], [2, 2]], [[1, 0], [2, 1]], [[1, 0], [2, 1]]])
    >>> deq_keras.diagnostics.answer_agreement(answers).numpy().round(3)
    array([1.   , 0.333], dtype=float32)
    """
    answers = tf.convert_to_tensor(answers)
    if answers.shape.rank < 2 or answers.shape[0] is None or answers.shape[0] < 2:
        raise ValueError(
            "`answers` must be those from at least two starts, an integer tensor "
            f"(starts, batch, ...). Received: shape={answers.shape}."
        )
    axes = list(range(1, answers.shape.rank - 1))
    pairs = [
        tf.reduce_all(tf.equal(one, two), axis=axes)
        for one, two in itertools.combinations(tf.unstack(answers), 2)
    ]
    return tf.reduce_mean(tf.cast(tf.stack(pairs), tf.float32), axis=0)
