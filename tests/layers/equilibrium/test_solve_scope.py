"""Calls of whole models that ask for a budget, and for what the solves found."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import XLA_IS_SLOW

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")
INPUTS[1] *= 30.0  # Saturated: done at once.


def _model(solver="fixed_point_iteration", gradient="truncated", **arguments):
    deq = layers.DEQ(TanhCell(5, 0.9), solver, gradient, name="deq", **arguments)
    return keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])


@XLA_IS_SLOW
def test_as_configured(regime):
    model = _model()
    expected = model.get_layer("deq").solve(INPUTS)

    def call(inputs):
        with layers.SolveScope(max_iter_limit=30) as scope:
            outputs = model(inputs, training=False)
        return outputs, scope.solutions["deq"]

    outputs, solution = regime(call)(INPUTS)
    np.testing.assert_allclose(outputs, model(INPUTS), atol=1e-6)
    np.testing.assert_array_equal(solution.num_evaluations, expected.num_evaluations)
    np.testing.assert_array_equal(solution.status, expected.status)
    assert layers.SolveScope.entered() is None


@XLA_IS_SLOW
def test_a_budget_and_a_tolerance(regime):
    model = _model(gradient="unrolled")

    def call(inputs, max_iter, tol):
        with layers.SolveScope(max_iter, tol, max_iter_limit=8) as scope:
            outputs = model(inputs, training=False)
        return outputs, scope.solutions["deq"].num_evaluations

    call = regime(call)
    for asked, tol, budget in ((2, 1e-5, 2), (10**12, 1e-5, 8), (0, 0.5, 8)):
        outputs, evaluations = call(
            INPUTS, tf.constant(asked, tf.int64), tf.constant(tol)
        )
        expected = model.get_layer("deq").solve(
            INPUTS, solvers.SolveRequest(max_iter=budget, tol=tol)
        )
        np.testing.assert_array_equal(evaluations, expected.num_evaluations)
        np.testing.assert_allclose(outputs, model.layers[-1](expected.value), atol=1e-5)


@pytest.mark.parametrize(("own", "tol"), [(None, np.nan), (1e-2, -1.0)])
def test_no_tolerance_is_that_of_the_solver(own, tol):
    """Also `None`, whose result is the last iterate and not the best."""
    # Spirals outwards: the first iterate is the best.
    solver = solvers.FixedPointIteration(max_iter=5, tol=own)
    model = keras.Sequential([keras.Input((3,)), layers.DEQ(TanhCell(5, 3.0), solver)])
    with layers.SolveScope(tol=tf.constant(tol)) as scope:
        outputs = model(INPUTS)
    (solution,) = scope.solutions.values()
    np.testing.assert_allclose(outputs, model(INPUTS), atol=1e-6)
    assert (solution.status.numpy() == solvers.MAX_ITER).any()


def test_training_takes_no_notice():
    deq = layers.DEQ(TanhCell(3), "fixed_point_iteration", "neumann", None)
    with layers.SolveScope(max_iter=1) as scope:
        trained = deq(INPUTS, training=True)
    np.testing.assert_allclose(trained, deq(INPUTS), atol=1e-3)
    assert not scope.solutions


def test_several_layers_and_the_innermost_scope():
    solver = "fixed_point_iteration"
    first = layers.DEQ(TanhCell(3), solver, name="first")
    second = layers.DEQ(TanhCell(3), solver, name="second")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, second(first(first(inputs))))
    with layers.SolveScope(max_iter=3, tol=0.0) as outer:
        with layers.SolveScope(max_iter=1) as inner:
            model(INPUTS)
        assert not outer.solutions
        model(INPUTS)
    assert list(inner.solutions) == ["first", "first_2", "second"]
    assert [int(s.batch_evaluations) for s in outer.solutions.values()] == [3, 3, 3]


def test_a_state_to_start_from_and_samples_without_one():
    model = _model()
    cold = model.get_layer("deq").solve(INPUTS)
    start = cold.value.numpy()
    start[2] = np.nan
    with layers.SolveScope(initial_states={"deq": start}) as scope:
        model(INPUTS)
    evaluations = scope.solutions["deq"].num_evaluations.numpy()
    assert evaluations[2] == cold.num_evaluations[2] > 1
    assert (evaluations[[0, 1, 3]] == 1).all()


def test_samples_that_fail():
    inputs = INPUTS.copy()
    inputs[1, 0] = np.nan
    model = _model()
    for batch in (inputs, inputs[1:2]):
        with layers.SolveScope() as scope:
            outputs = model(batch)
        np.testing.assert_allclose(outputs, model(batch), atol=1e-6)
    assert scope.solutions["deq"].status.numpy() == [solvers.DIVERGED]


def test_half_precision_and_nests():
    inputs = {name: keras.Input((3,), name=name) for name in ("x", "y")}
    half = "mixed_bfloat16"
    solver = solvers.FixedPointIteration(max_iter=5, tol=1e-2)
    deq = layers.DEQ(TwoScaleCell(3, dtype=half), solver, dtype=half)
    model = keras.Model(inputs, deq(inputs))
    batch = {"x": INPUTS, "y": INPUTS}
    with layers.SolveScope(max_iter=5) as scope:
        outputs = model(batch)
    for one, two in zip(tf.nest.flatten(outputs), tf.nest.flatten(model(batch))):
        np.testing.assert_array_equal(
            tf.cast(one, tf.float32), tf.cast(two, tf.float32)
        )
    assert len(scope.solutions) == 1


def test_a_misspelled_name_of_an_initial_state_is_refused():
    model = _model()
    start = np.zeros((4, 5), "float32")
    match = r"Expected: names among \['deq'\].*Received: \['dqe'\]"
    with pytest.raises(ValueError, match=match):
        with layers.SolveScope(initial_states={"dqe": start}):
            model(INPUTS)
    # An exception within the scope is more important.
    with pytest.raises(KeyError), layers.SolveScope(initial_states={"dqe": start}):
        raise KeyError
    assert layers.SolveScope.entered() is None


@pytest.mark.parametrize(
    "arguments", [{"max_iter": "3"}, {"max_iter": 2.5}, {"tol": "small"}], ids=str
)
def test_bad_settings_are_refused_and_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"`{name}` must.*Received: {name}={value!r}"):
        layers.SolveScope(**arguments)


def test_the_limit_of_an_outer_scope_holds_within():
    solver = solvers.FixedPointIteration(7, tol=None)
    model = keras.Sequential([keras.Input((3,)), layers.DEQ(TanhCell(4), solver)])
    for asked, spent in ((3, 3), (100, 5)):
        with layers.SolveScope(max_iter=asked, max_iter_limit=5):
            with layers.SolveScope() as scope:
                model(INPUTS)
        (solution,) = scope.solutions.values()
        assert set(solution.num_evaluations.numpy()) == {spent}
        assert solution.trace.shape[0] == 5
