"""Selection of one of several restarts, and their agreement."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import multistart, solvers
from tests.regimes import ALL_BUT_EAGER_ARE_SLOW

INF = float("inf")
C, M, D = solvers.CONVERGED, solvers.MAX_ITER, solvers.DIVERGED


def _solution(status, residual, values=None, dtype=tf.float32):
    """A `Solution` of restarts, given as lists (restarts, batch)."""
    status, residual = np.array(status), np.array(residual)
    size = status.size
    if values is None:
        values = np.ones((*status.shape, 2))
    state = tf.constant(np.reshape(values, (size, -1)), dtype)
    trace = tf.constant(np.arange(3 * size).reshape(3, size), tf.float32)
    return solvers.Solution(
        value=state,
        point=2.0 * state,
        residual=tf.constant(residual.ravel(), tf.float32),
        status=tf.constant(status.ravel(), tf.int32),
        num_evaluations=tf.range(1, size + 1),
        batch_evaluations=tf.constant(9),
        trace=trace,
    )


def _chosen(status, residual, select="residual", **arguments):
    solution = _solution(status, residual, **arguments)
    selection = multistart.Selection(select)
    return selection(solution, len(status)).restart.numpy().tolist()


def test_order_of_statuses():
    assert _chosen([[M], [C], [C]], [[1e-9], [0.2], [0.1]]) == [2]
    assert _chosen([[D], [D], [M]], [[INF], [1e-9], [0.5]]) == [2]
    assert _chosen([[D], [D]], [[INF], [0.5]]) == [1]
    assert _chosen([[D], [D]], [[INF], [INF]]) == [0]
    # Each sample by itself; of equals the first.
    assert _chosen([[C, M], [C, C]], [[0.1, 0.1], [0.1, 0.2]]) == [0, 1]


@ALL_BUT_EAGER_ARE_SLOW
def test_result_is_that_of_the_chosen_restart(regime):
    values = np.arange(12).reshape(3, 2, 2)

    def select():
        solution = _solution(
            [[M, C], [C, M], [C, M]], [[0.3, 0.3], [0.2, 0.2], [0.1, 0.1]], values
        )
        return multistart.Selection()(solution, 3)

    found = regime(select)()
    np.testing.assert_array_equal(found.restart, [2, 0])
    np.testing.assert_array_equal(found.value, [[8, 9], [2, 3]])
    np.testing.assert_array_equal(found.point, [[16, 18], [4, 6]])
    np.testing.assert_allclose(found.residual, [0.1, 0.3])
    np.testing.assert_array_equal(found.status, [C, C])
    np.testing.assert_array_equal(found.num_evaluations, [5, 2])
    np.testing.assert_array_equal(found.total_evaluations, [1 + 3 + 5, 2 + 4 + 6])
    np.testing.assert_array_equal(found.trace, [[4, 1], [10, 7], [16, 13]])
    assert found.batch_evaluations == 9


@ALL_BUT_EAGER_ARE_SLOW
def test_vote_by_position(regime):
    """The majority is [1, 1, 1, 0], which none has; the nearest is taken."""
    predictions = [
        [[1, 1, 0, 0]],
        [[1, 0, 1, 0]],
        [[0, 1, 1, 0]],
        [[0, 0, 1, 1]],
        [[1] * 4],
    ]
    status = [[C]] * 5
    residual = [[0.5], [0.4], [0.3], [0.2], [0.45]]

    def select():
        solution = _solution(status, residual, np.array(predictions)[:, None])
        selection = multistart.Selection("vote", predict=lambda z: tf.cast(z, tf.int32))
        return selection(solution, 5)

    found = regime(select)()
    # 0, 1, 2 and 4 have three of four positions.
    assert found.restart.numpy() == [2]
    np.testing.assert_array_equal(found.value, [[0, 1, 1, 0]])
    np.testing.assert_allclose(found.agreement, [0.2])


def test_only_the_best_status_votes():
    values = [[[1.0]], [[2.0]], [[2.0]], [[2.0]]]
    solution = _solution([[C], [M], [M], [D]], [[0.1]] * 4, values)
    selection = multistart.Selection("vote", predict=lambda z: z > 1.5)
    found = selection(solution, 4)
    assert found.restart.numpy() == [0]
    np.testing.assert_allclose(found.agreement, [0.25])


def test_agreement_and_spread_of_states():
    values = [[[1.0, 0.0]], [[1.005, 0.0]], [[0.0, 0.5]], [[1.0, 0.0]]]
    status, residual = [[C], [C], [C], [D]], [[0.1], [0.2], [0.3], [0.4]]
    found = multistart.Selection()(_solution(status, residual, values), 4)
    np.testing.assert_allclose(found.agreement, [0.5])  # One failed.
    # Relative to the larger of the two norms.
    distances = [0.0, 0.005 / 1.005, np.sqrt(1.25)]
    np.testing.assert_allclose(found.spread, [np.mean(distances)], rtol=1e-4)
    alone = multistart.Selection()(_solution([[C]], [[0.1]]), 1)
    assert (alone.agreement.numpy(), alone.spread.numpy()) == ([1.0], [0.0])
    failed = multistart.Selection()(_solution([[D], [D]], [[INF], [INF]]), 2)
    assert (failed.agreement.numpy(), failed.spread.numpy()) == ([0.0], [0.0])


@ALL_BUT_EAGER_ARE_SLOW
def test_function_selects(regime):
    shapes = []

    def longest(solutions):
        shapes.extend([solutions.value.shape, solutions.trace.shape])
        return tf.argmax(solutions.num_evaluations, axis=0)

    def select():
        solution = _solution([[C, C], [D, D]], [[0.1, 0.1], [0.2, 0.2]])
        return multistart.Selection(longest)(solution, 2).restart

    np.testing.assert_array_equal(regime(select)(), [1, 1])
    assert shapes[:2] == [(2, 2, 2), (3, 2, 2)]


@pytest.mark.parametrize(
    "select", [lambda s: s.residual, lambda s: s.residual[0], lambda s: 0]
)
def test_function_that_returns_no_index_raises(select):
    solution = _solution([[C, C], [C, C]], [[0.1, 0.1], [0.2, 0.2]])
    with pytest.raises(ValueError, match="Received"):
        multistart.Selection(select)(solution, 2)


@pytest.mark.parametrize("index", [-1, 2])
def test_index_out_of_range_raises(index):
    solution = _solution([[C, C], [C, C]], [[0.1, 0.1], [0.2, 0.2]])
    selection = multistart.Selection(lambda s: tf.fill([2], index))
    with pytest.raises(tf.errors.InvalidArgumentError):
        selection(solution, 2)


@pytest.mark.parametrize(
    "predict", [lambda z: z, lambda z: tf.argmax(z[0]), lambda z: tf.argmax(z, axis=0)]
)
def test_answer_of_another_type_raises(predict):
    solution = _solution([[C]] * 3, [[0.1]] * 3)
    with pytest.raises(ValueError, match="`predict`"):
        multistart.Selection("vote", predict)(solution, 3)
