"""What models answer from several starts and after several budgets, on closed forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers
from deq_keras.diagnostics import (
    WeightTiedModel,
    alignment_score,
    answer_agreement,
    answers_by_budget,
    compare_initial_states,
    overthinking,
    rank_correlation,
)
from deq_keras.solvers import FixedPointIteration, SolveRequest
from tests import regimes

TIGHT = FixedPointIteration(max_iter=60, tol=1e-6)
VECTORS = np.array([[1, 1], [1, -1], [-1, -1]], "float32")


def _signs(state):
    """Scores of the classes "not positive" and "positive" of every entry."""
    return tf.stack([-state, state], axis=-1)


def _model(cell, **kwargs):
    return WeightTiedModel(cell, head=_signs, **kwargs)


CONTRACTION = _model(lambda z, u: 0.5 * z + u)
# Every entry is drawn to one of the two solutions of a = tanh(3 a), or stays at zero.
TWO_ATTRACTORS = _model(lambda z, u: tf.tanh(3.0 * z), initial_state=lambda u: u)
ROTATION = _model(
    lambda z, u: tf.stack([-z[:, 1], z[:, 0]], axis=1), initial_state=lambda u: u
)


@regimes.ALL_BUT_EAGER_ARE_SLOW
def test_contraction_forgets_its_initial_state(regime):
    compare = regime(
        lambda inputs: compare_initial_states(CONTRACTION, inputs, solver=TIGHT)
    )
    found = compare(VECTORS)
    np.testing.assert_allclose(found.alignment, np.ones((3, 3)), atol=1e-5)
    np.testing.assert_array_equal(answer_agreement(found.answers), np.ones(3))
    np.testing.assert_array_equal(found.converged, np.ones((4, 3), bool))
    np.testing.assert_array_equal(found.answers[0], VECTORS > 0)
    assert np.all(found.num_evaluations > 10)


def test_two_attractors():
    found = compare_initial_states(TWO_ATTRACTORS, VECTORS, ("other", "zeros"), TIGHT)
    # Where another sample ended, each stays: the second, the third, the first.
    np.testing.assert_allclose(found.alignment[0], [0, 0, -1], atol=1e-6)
    np.testing.assert_array_equal(found.alignment[1], [0, 0, 0])
    rows = [[1, 1], [1, 0], [0, 0]]
    expected = [rows, rows[1:] + rows[:1], np.zeros((3, 2))]
    np.testing.assert_array_equal(found.answers, expected)
    agreement = answer_agreement(found.answers)
    np.testing.assert_allclose(agreement, [0, 1 / 3, 1 / 3], atol=1e-6)
    assert np.all(found.converged)


def test_rotation_does_not_converge():
    found = compare_initial_states(ROTATION, VECTORS, ["other"], TIGHT)
    assert not np.any(found.converged)
    np.testing.assert_allclose(found.residual, np.full((2, 3), 2**0.5), rtol=1e-6)
    assert np.all(found.num_evaluations == 60)


def test_drawn_initial_states_depend_on_the_seed():
    def answers(seed):
        found = compare_initial_states(TWO_ATTRACTORS, VECTORS, ["normal"], TIGHT, seed)
        return found.answers[1].numpy().tolist()

    assert answers(0) == answers(0)
    assert any(answers(seed) != answers(0) for seed in range(1, 5))


def test_alignment_of_nests():
    one = {"a": np.array([[3.0], [0.0], [0.0]]), "b": np.array([[4.0], [0], [0]])}
    two = {"a": np.array([[4.0], [0.0], [1.0]]), "b": np.array([[3.0], [0], [0]])}
    np.testing.assert_allclose(alignment_score(one, two), [0.96, 1.0, 0.0])


def test_one_initial_state_raises():
    with pytest.raises(ValueError, match="Received"):
        answer_agreement(np.zeros((1, 3, 2), "int32"))


@regimes.ALL_BUT_EAGER_ARE_SLOW
def test_budgets_equal_separate_solves(regime):
    damping = 0.5
    model = _model(lambda z, u: tf.cos(2.0 * z + u))
    budgets = (1, 2, 7, 20)
    answer = regime(lambda x: answers_by_budget(model, x, budgets, damping))
    curve = answer(VECTORS)
    solver = FixedPointIteration(tol=None, damping=damping)
    for budget, answers in zip(budgets, curve.answers, strict=True):
        solution = solver.solve(
            lambda z: tf.cos(2.0 * z + VECTORS),
            SolveRequest(0 * VECTORS, max_iter=budget),
        )
        np.testing.assert_array_equal(answers, solution.value > 0)
    np.testing.assert_allclose(curve.residual, solution.trace, atol=1e-5)


def test_model_that_overthinks():
    counter = WeightTiedModel(
        lambda z, u: z + 1.0,
        head=lambda state: _signs(10.0 - state),
        initial_state=lambda u: 0.0 * u,
    )
    budgets = (2, 5, 20, 50)
    curve = answers_by_budget(counter, VECTORS, budgets)
    accuracy = curve.right(np.ones((3, 2))).mean(axis=1)
    np.testing.assert_array_equal(accuracy, [1, 1, 0, 0])
    assert overthinking(budgets, accuracy) == 1.0
    np.testing.assert_allclose(curve.residual[-1], np.full(3, 1 / 50), rtol=1e-6)


def test_budgets_from_another_initial_state():
    curve = answers_by_budget(TWO_ATTRACTORS, VECTORS, [30], initial_state=-VECTORS)
    np.testing.assert_array_equal(curve.answers[0], VECTORS < 0)


def test_positions_without_weight_do_not_count():
    curve = answers_by_budget(CONTRACTION, VECTORS, [1])
    weight = np.array([[1, 1], [1, 0], [0, 0]])
    targets = np.array([[1, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(curve.right(targets), [[0, 0, 0]])
    np.testing.assert_array_equal(curve.right(targets, weight), [[0, 1, 1]])


def test_parts_around_a_layer():
    """The parts of a model around a `DEQ`, in half precision, answer as it does."""
    cell = layers.RecallCell(6, rank=1, activation="tanh", dtype="mixed_bfloat16")
    deq = layers.DEQ(
        cell, FixedPointIteration(max_iter=8, tol=None), dtype="mixed_bfloat16"
    )
    encoder, head = (keras.layers.Dense(units) for units in (3, 2))
    inputs = np.random.default_rng(0).normal(size=(4, 7, 2)).astype("float32")
    solution = deq.solve(encoder(inputs))
    expected = np.argmax(head(solution.value), axis=-1)
    model = WeightTiedModel(deq.cell, encoder, head)
    curve = answers_by_budget(model, inputs, [1, 8])
    np.testing.assert_array_equal(curve.answers[1], expected)
    np.testing.assert_array_equal(curve.residual, solution.trace)
    found = compare_initial_states(model, inputs, ["cell"], deq.solver)
    np.testing.assert_array_equal(found.answers, [expected, expected])


def test_overthinking_is_the_loss_of_the_best_budget():
    assert overthinking([1, 2, 10, 20], [0.5, 0.75, 0.75, 0.25]) == 0.5
    # Ten times the best of all was not measured.
    assert overthinking([1, 10, 50], [0.5, 0.25, 1.0]) == 0.25
    # The smaller of two that are best.
    assert overthinking([1, 2, 10, 20], [1.0, 1.0, 0.75, 0.5]) == 0.25
    assert overthinking([1, 10], [0.25, 1.0]) == -0.75


def test_rank_correlation():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [5, 4, -9]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4.
    expected = 4.5 / np.sqrt(4.5 * 5.0)
    assert rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(expected)
    assert np.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


@pytest.mark.parametrize("first, second", [([1, 2], [1, 2, 3]), ([1], [1])])
def test_rank_correlation_of_other_shapes_raises(first, second):
    with pytest.raises(ValueError, match="Received"):
        rank_correlation(first, second)
