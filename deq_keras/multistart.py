"""Solve each sample from several initial states and select one result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count, did_you_mean
from deq_keras.core.predictions import check_predict, read_predictions
from deq_keras.core.random import as_seed, fold_in
from deq_keras.core.request import check_request
from deq_keras.core.structure import Nest, StateStructure, zero_padding
from deq_keras.initial_states import Normal
from deq_keras.solvers import MAX_ITER, Solution, SolveRequest

__all__ = [
    "SelectedSolution",
    "Selection",
    "solve",
]

# States within this relative distance count as the same equilibrium.
_SAME_DISTANCE = 0.01
_NAMES = ("residual", "vote")


class SelectedSolution(NamedTuple):
    """The `deq_keras.solvers.Solution` of the restart chosen for each sample.

    Failed restarts, whose status is `DIVERGED`, agree with no other restart.

    Attributes:
        value: Nest like the state. `Solution` documents this and the next six.
        point: Nest like the state.
        residual: Float tensor `(batch,)`.
        status: Int32 tensor `(batch,)`.
        num_evaluations: Int32 tensor `(batch,)`.
        batch_evaluations: Int32 scalar. Evaluations of the whole batch, which contains
            all restarts.
        trace: Float tensor `(max_iter, batch)`.
        restart: Int32 tensor `(batch,)`. Index of the chosen restart. Restart 0 starts
            where a solve without restarts does.
        agreement: Float tensor `(batch,)` in [0, 1]. Fraction of all restarts,
            including the chosen one, that have its prediction. Without `predict`, the
            fraction within a relative distance of 0.01.
        spread: Float tensor `(batch,)` in [0, 2]. The mean of |z - z'| / max(|z|, |z'|)
            over all restarts z' that did not fail, including the chosen one z.
        total_evaluations: Int32 tensor `(batch,)`. Evaluations of all restarts of a
            sample.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor
    restart: tf.Tensor
    agreement: tf.Tensor
    spread: tf.Tensor
    total_evaluations: tf.Tensor


class Selection:
    """Chooses one of several restarts of every sample.

    The candidates are the converged restarts of a sample; if none converged, the
    restarts that did not fail; if all failed, the failed ones. Among the candidates:

    * `"residual"` selects the restart with the smallest residual. With a tolerance, all
      solves stop near the tolerance; with `tol=0.0`, the budget separates restarts.
    * `"vote"` determines the most frequent prediction at each position, and selects the
      restart that agrees at the most positions. Of several, it selects the restart with
      the smallest residual. The result is therefore a computed equilibrium.

    Args:
        select: `"residual"`, `"vote"`, or a function from a
            `deq_keras.solvers.Solution` whose tensors are `(restarts, batch, ...)`, its
            trace `(max_iter, restarts, batch)`, to an integer tensor `(batch,)`, the
            index of the chosen restart. Defaults to `"residual"`.
        predict: Optional function from the results, a nest of `(batch, ...)` tensors,
            to predictions, a nest of integer or Boolean tensors `(batch, ...)`, such as
            the `argmax` of a head's logits. `"vote"` and `agreement` compare them.

    Raises:
        ValueError: For another `select`, or `"vote"` without `predict`.

    Example:

    >>> solver = deq_keras.solvers.FixedPointIteration(max_iter=50)
    >>> starts = tf.constant([[0.1], [-0.2], [0.3]])  # Of one sample: two equilibria.
    >>> solution = solver.solve(
    ...     lambda z: tf.tanh(3.0 * z), deq_keras.solvers.SolveRequest(starts)
    ... )
    >>> selection = deq_keras.multistart.Selection("vote", predict=lambda z: z > 0.0)
    >>> selected = selection(solution, num_restarts=3)
    >>> round(float(selected.value[0, 0]), 2), round(float(selected.agreement[0]), 2)
    (0.99, 0.67)
    """

    def __init__(
        self,
        select: str | Callable[[Solution], tf.Tensor] = "residual",
        predict: Callable[[Nest], Nest] | None = None,
    ) -> None:
        if not callable(select) and select not in _NAMES:
            raise ValueError(
                "`select` must be 'residual', 'vote', or a function from the solutions "
                f"of all restarts to indices. Received: select={select!r}."
                + did_you_mean(select, _NAMES)
            )
        if select == "vote" and predict is None:
            raise ValueError(
                "A vote needs predictions. Pass `predict`, a function from an "
                "equilibrium to a prediction, such as the argmax of a head's logits. "
                "Received: select='vote', predict=None."
            )
        self.select = select
        self.predict = None if predict is None else check_predict(predict)

    def __call__(self, solution: Solution, num_restarts: int) -> SelectedSolution:
        """Returns the `SelectedSolution` of the chosen restarts.

        Args:
            solution: `Solution` of `num_restarts * batch` samples: the batch of the
                first restart, then the batch of the second, and so on.
            num_restarts: Positive integer.
        """

        def split(leaf: tf.Tensor) -> tf.Tensor:
            shape = tf.shape(leaf)
            rest = tf.concat([[num_restarts, shape[0] // num_restarts], shape[1:]], 0)
            return tf.reshape(leaf, rest)  # (restarts, batch, ...)

        # 1. Compute comparable predictions of all restarts.
        # 2. Choose a restart of each sample.
        # 3. Compare the chosen restart with all restarts of its sample.
        predictions = None
        if self.predict is not None:
            columns = [
                # The size is explicit: -1 is ambiguous for an empty batch.
                tf.reshape(
                    tf.cast(leaf, tf.int64),
                    [tf.shape(leaf)[0], tf.reduce_prod(tf.shape(leaf)[1:])],
                )
                for leaf in tree.flatten(read_predictions(self.predict, solution.value))
            ]
            # (restarts, batch, positions)
            predictions = split(tf.concat(columns, axis=1))
        # Every tensor of `rows` has a row for each sample.
        rows = solution._replace(
            trace=tf.transpose(solution.trace), batch_evaluations=()
        )
        stacked = tree.map_structure(split, rows)
        restart = self._choose(
            stacked._replace(
                trace=tf.transpose(stacked.trace, [2, 0, 1]),
                batch_evaluations=solution.batch_evaluations,
            ),
            predictions,
        )
        others = StateStructure(solution.value).to_matrix(solution.value)
        nearest = repeat_rows(take_rows(others, restart), num_restarts)
        largest = tf.maximum(tf.norm(nearest, axis=1), tf.norm(others, axis=1))
        # If the larger norm is zero, the distance is zero.
        distances = split(
            tf.math.divide_no_nan(tf.norm(nearest - others, axis=1), largest)
        )
        is_same = distances <= _SAME_DISTANCE
        if predictions is not None:
            own = tf.gather(tf.transpose(predictions, [1, 0, 2]), restart, batch_dims=1)
            is_same = tf.reduce_all(tf.equal(predictions, own), axis=2)
        is_usable = ~nonfinite.has_failed(stacked)
        fields = take_rows(rows, restart)._asdict()
        fields |= {
            "trace": tf.transpose(fields["trace"]),
            "batch_evaluations": solution.batch_evaluations,
        }
        return SelectedSolution(
            **fields,
            restart=restart,
            agreement=_mean(is_same & is_usable, tf.ones_like(is_usable)),
            spread=_mean(distances, is_usable),
            total_evaluations=tf.reduce_sum(stacked.num_evaluations, axis=0),
        )

    def _choose(self, solutions: Solution, predictions: tf.Tensor | None) -> tf.Tensor:
        """Returns the index of each sample's chosen restart, int32 `(batch,)`.

        Args:
            solutions: `Solution` whose tensors are `(restarts, batch, ...)`.
            predictions: Integer tensor `(restarts, batch, positions)`, or `None`.
        """
        if callable(self.select):
            return _check_restart(self.select(solutions), solutions.status)
        # Lower ranks come first.
        rank = tf.where(tf.equal(solutions.status, MAX_ITER), 1, 0)
        rank = tf.where(nonfinite.has_failed(solutions), 2, rank)
        rank = tf.where(nonfinite.has_no_evaluation(solutions), 3, rank)
        is_candidate = tf.equal(rank, tf.reduce_min(rank, axis=0))
        if self.select == "vote":
            votes = _votes_for_majority(predictions, is_candidate)
            votes = tf.where(is_candidate, votes, -1)
            is_candidate = tf.equal(votes, tf.reduce_max(votes, axis=0))
        residual = tf.where(is_candidate, solutions.residual, float("inf"))
        return tf.argmin(residual, axis=0, output_type=tf.int32)


def solve(
    layer: Any,
    inputs: Nest,
    restarts: int,
    select: str | Callable[[Solution], tf.Tensor] = "residual",
    predict: Callable[[Nest], Nest] | None = None,
    request: SolveRequest | None = None,
    mask: Nest | None = None,
) -> SelectedSolution:
    """Solves each sample of a `DEQ` layer from several states and selects one result.

    The first restart starts where the layer does. The others start at draws from the
    layer's `initial_state`, if it is random, or from N(0, 1). All samples share the
    draws. XLA draws different numbers. All restarts form one batch with one injection.

    Args:
        layer: A `DEQ` layer.
        inputs: Inputs of the layer.
        restarts: Positive integer. Number of solves per sample.
        select: `"residual"`, `"vote"` or a function; see `Selection`. Defaults to
            `"residual"`.
        predict: Optional function from an equilibrium to predictions. `"vote"` requires
            it; see `Selection`. Defaults to `None`.
        request: A `SolveRequest`; see `DEQ.request`. Without a seed, the seed of the
            layer, or else 0, determines the draws. Defaults to `None`.
        mask: See the call arguments of `DEQ`. Defaults to `None`.

    Returns:
        A `SelectedSolution`.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(16))
    >>> inputs = np.ones((2, 3), "float32")
    >>> selected = deq_keras.multistart.solve(deq, inputs, restarts=4)
    >>> selected.agreement.numpy()
    array([1., 1.], dtype=float32)
    """
    restarts = check_count("restarts", restarts)
    selection = Selection(select, predict)
    problem = layer.problem(inputs, mask)
    request = SolveRequest() if request is None else request
    request = check_request(request, needs_state=False)
    seed = request.seed
    request = layer.request(problem, request)
    state = repeat_rows(request.initial_state, restarts)
    batch_size = tf.shape(tree.flatten(request.initial_state)[0])[0]
    problem = problem.rows(repeat_rows(tf.range(batch_size), restarts))
    seed = as_seed((layer.seed or 0) if seed is None else seed)
    if restarts > 1:
        # All samples share the draws, so that the rest of the batch and the order of
        # its samples do not affect a result. The slice has the shape of one state for
        # each further restart, also in an empty batch. A solve draws its initial state
        # and its noise with 0 and 1.
        like = tree.map_structure(lambda leaf: tf.zeros_like(leaf[1:restarts]), state)
        draw = layer.initial_state.random_part or Normal()
        drawn = draw(like, fold_in(seed, 2))

        def with_drawn(leaf: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
            repeated = tf.repeat(drawn, batch_size, axis=0)  # (restarts - 1) * batch
            result = tf.concat([leaf[:batch_size], repeated], axis=0)
            return tf.ensure_shape(result, leaf.shape)

        state = tree.map_structure(with_drawn, state, drawn)
    state = zero_padding(state, problem.mask)
    solution = layer.solver.solve(problem, request._replace(initial_state=state))
    return selection(solution, restarts)


def _votes_for_majority(predictions: tf.Tensor, votes: tf.Tensor) -> tf.Tensor:
    """Returns the number of positions at which each restart agrees with the majority.

    Ties go to the prediction of the restart with the smallest index.

    Args:
        predictions: Integer tensor `(restarts, batch, positions)`.
        votes: Boolean tensor `(restarts, batch)`. Restarts that vote.

    Returns:
        Int32 tensor `(restarts, batch)`.
    """

    def winner(
        best: tuple[tf.Tensor, tf.Tensor], one: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        count, majority = best
        prediction, has_vote = one
        for_it = votes[:, :, None] & tf.equal(predictions, prediction)
        new = tf.reduce_sum(tf.cast(for_it, tf.int32), axis=0)  # (batch, positions)
        wins = has_vote[:, None] & (new > count)
        return tf.where(wins, new, count), tf.where(wins, prediction, majority)

    # Loops, because one vectorized comparison needs memory for all pairs of restarts.
    first = (tf.zeros_like(predictions[0], tf.int32), predictions[0])
    _, majority = tf.foldl(winner, (predictions, votes), first, parallel_iterations=1)
    return tf.reduce_sum(tf.cast(tf.equal(predictions, majority), tf.int32), axis=2)


def _mean(values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the means over the restarts in `counts`, or 0 without any."""
    counted = tf.where(counts, tf.cast(values, tf.float32), 0.0)
    num = tf.reduce_sum(tf.cast(counts, tf.float32), axis=0)
    return tf.math.divide_no_nan(tf.reduce_sum(counted, axis=0), num)


def _check_restart(restart: Any, status: tf.Tensor) -> tf.Tensor:
    """Returns the indices that a function chose, if they are valid restarts."""
    restart = tf.convert_to_tensor(restart)
    expected = status.shape[1:]
    if not restart.dtype.is_integer or not restart.shape.is_compatible_with(expected):
        raise ValueError(
            "`select` must return an integer tensor (batch,), the index of a restart "
            f"for each sample. Expected: shape={expected}. Received: "
            f"shape={restart.shape}, dtype={restart.dtype.name}."
        )
    restart = tf.cast(restart, tf.int32)
    num_restarts, batch_size = tf.unstack(tf.shape(status))
    is_valid = tf.reduce_all((restart >= 0) & (restart < num_restarts))
    check = tf.debugging.Assert(
        is_valid & tf.equal(tf.size(restart), batch_size),
        ["`select` must return an index from 0 to `restarts` - 1 a sample:", restart],
    )
    # Checked now in eager mode, and in a graph before they are used.
    with tf.control_dependencies([] if check is None else [check]):
        return tf.ensure_shape(tf.identity(restart), expected)


def repeat_rows(samples: Nest, num_restarts: int) -> Nest:
    """Returns all samples, repeated once per restart.

    Args:
        samples: Nest of `(batch, ...)` tensors and `None`, which does not change.
        num_restarts: Positive integer.

    Returns:
        A nest of `(num_restarts * batch, ...)` tensors: the whole batch, repeated.
    """

    def repeat(leaf: tf.Tensor | None) -> tf.Tensor | None:
        if leaf is None:
            return None
        return tf.tile(leaf, [num_restarts] + [1] * (leaf.shape.rank - 1))

    return tree.map_structure(repeat, samples)


def take_rows(rows: Nest, restart: tf.Tensor) -> Nest:
    """Returns a nest of `(batch, ...)` tensors: the restart of each sample.

    Args:
        rows: Nest of `(num_restarts * batch, ...)` tensors.
        restart: Int32 tensor `(batch,)`. Index of the chosen restart.
    """
    batch_size = tf.size(restart)
    indices = restart * batch_size + tf.range(batch_size)
    return tree.map_structure(lambda leaf: tf.gather(leaf, indices), rows)
