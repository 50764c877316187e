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
        with layers.SolveScope(model) as scope:
            outputs = model(inputs, training=False)
        return outputs, scope.solutions["deq"]

    outputs, solution = regime(call)(INPUTS)
    np.testing.assert_allclose(outputs, model(INPUTS), atol=1e-6)
    np.testing.assert_array_equal(solution.num_evaluations, expected.num_evaluations)
    np.testing.assert_array_equal(solution.status, expected.status)


@XLA_IS_SLOW
def test_a_budget_and_a_tolerance(regime):
    model = _model(gradient="unrolled")

    def call(inputs, max_iter, tol):
        with layers.SolveScope(model, max_iter, tol) as scope:
            outputs = model(inputs, training=False)
        return outputs, scope.solutions["deq"].num_evaluations

    call = regime(call)
    for budget, tol in ((2, 1e-5), (8, 0.5)):
        outputs, evaluations = call(
            INPUTS, tf.constant(budget, tf.int64), tf.constant(tol)
        )
        expected = model.get_layer("deq").solve(
            INPUTS, solvers.SolveRequest(max_iter=budget, tol=tol)
        )
        np.testing.assert_array_equal(evaluations, expected.num_evaluations)
        np.testing.assert_allclose(outputs, model.layers[-1](expected.value), atol=1e-5)


def test_training_ignores_the_budget_and_records_its_output():
    deq = layers.DEQ(TanhCell(3), "fixed_point_iteration", "unrolled", None, name="deq")
    with layers.SolveScope(deq, max_iter=1) as scope:
        trained = deq(INPUTS, training=True)
    np.testing.assert_allclose(trained, deq(INPUTS), atol=1e-6)
    np.testing.assert_array_equal(scope.solutions["deq"].value, trained)
    start = np.full((4, 3), np.nan, "float32")
    start[0] = trained[0]
    with layers.SolveScope(deq, initial_states={"deq": start}) as scope:
        deq(INPUTS, training=True)
    counts = scope.solutions["deq"].num_evaluations.numpy()
    assert counts[0] == 1 < counts[2]


def test_scope_keeps_gradients_and_metrics():
    model = _model(gradient="neumann")
    deq, inputs = model.get_layer("deq"), tf.constant(INPUTS)
    slopes = []
    for call in (
        lambda: deq(inputs, max_iter=2, tol=0.0, training=False),
        lambda: deq(inputs, training=False),
    ):
        with layers.SolveScope(model, max_iter=2, tol=0.0), tf.GradientTape() as tape:
            loss = tf.reduce_sum(call())
        slopes.append(tape.gradient(loss, deq.cell.recurrent.kernel.value))
        assert float(deq.metrics[0].result()) == 2.0
    np.testing.assert_allclose(*slopes)
    assert np.any(slopes[0] != 0)


def test_several_layers_and_the_innermost_scope():
    solver = "fixed_point_iteration"
    first = layers.DEQ(TanhCell(3), solver, name="first")
    second = layers.DEQ(TanhCell(3), solver, name="second")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, second(first(first(inputs))))
    with layers.SolveScope(model, max_iter=3, tol=0.0) as outer:
        with layers.SolveScope(model, max_iter=1) as inner:
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
    with layers.SolveScope(model, initial_states={"deq": start}) as scope:
        model(INPUTS)
    evaluations = scope.solutions["deq"].num_evaluations.numpy()
    assert evaluations[2] == cold.num_evaluations[2] > 1
    assert (evaluations[[0, 1, 3]] == 1).all()


def test_samples_that_fail():
    inputs = INPUTS.copy()
    inputs[1, 0] = np.nan
    model = _model()
    for batch in (inputs, inputs[1:2]):
        with layers.SolveScope(model) as scope:
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
    with layers.SolveScope(model, max_iter=5) as scope:
        outputs = model(batch)
    for one, two in zip(tf.nest.flatten(outputs), tf.nest.flatten(model(batch))):
        np.testing.assert_array_equal(
            tf.cast(one, tf.float32), tf.cast(two, tf.float32)
        )
    assert len(scope.solutions) == 1


def test_a_misspelled_name_of_an_initial_state_is_refused():
    model = _model()
    states = {"dqe": np.zeros((4, 5), "float32")}
    match = r"Expected: names among \['deq'\].*Received: \['dqe'\]"
    with pytest.raises(ValueError, match=match):
        with layers.SolveScope(model, initial_states=states):
            model(INPUTS)
    # An exception within the scope is more important.
    with pytest.raises(KeyError), layers.SolveScope(model, 1, initial_states=states):
        raise KeyError
    with layers.SolveScope(model) as scope:
        model(INPUTS)
    assert np.max(scope.solutions["deq"].num_evaluations) > 1


@pytest.mark.parametrize(
    "arguments", [{"max_iter": "3"}, {"max_iter": 0}, {"tol": "small"}], ids=str
)
def test_bad_settings_are_refused_and_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"`{name}` must.*Received: {name}={value!r}"):
        layers.SolveScope(_model(), **arguments)


@pytest.mark.parametrize("model", [3, keras.layers.Dense(1)], ids=["number", "dense"])
def test_a_model_without_an_equilibrium_raises(model):
    with pytest.raises(ValueError, match="Received: model="):
        with layers.SolveScope(model):
            pass


TARGETS = INPUTS[:, :2]


def _compiled_model(**arguments):
    model = _model(gradient="neumann", regularizer=None)
    model.compile(keras.optimizers.SGD(0.0), "mse", **arguments)
    return model


def _expected(model, max_iter=None, tol=None):
    """The outputs at a budget, without a scope."""
    solution = model.get_layer("deq").solve(
        INPUTS, solvers.SolveRequest(max_iter=max_iter, tol=tol)
    )
    return model.layers[-1](solution.value).numpy()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"steps_per_execution": 2}, {"jit_compile": True}, {"run_eagerly": True}],
    ids=str,
)
@pytest.mark.parametrize("is_traced_before", [False, True])
def test_predict_reads_the_budget_at_each_call(arguments, is_traced_before):
    model = _compiled_model(**arguments)

    def check(*budget):
        outputs = model.predict(INPUTS, verbose=0)
        np.testing.assert_allclose(outputs, _expected(model, *budget), atol=1e-5)

    if is_traced_before:
        check()
    for max_iter in (1, 4, 60):  # The solver has 30.
        with layers.SolveScope(model, max_iter, tol=0.0):
            check(max_iter, 0.0)
    with layers.SolveScope(model, tol=0.3):
        check(30, 0.3)
    check()
    model.get_layer("deq").solver = solvers.FixedPointIteration(3, 1e-9)
    check()


def test_five_budgets_are_one_trace():
    model, traces = _compiled_model(), []
    call = model.get_layer("deq").cell.call
    model.get_layer("deq").cell.call = lambda *args: traces.append(1) or call(*args)
    model.predict(INPUTS, verbose=0)
    count = len(traces)
    for n in range(1, 6):
        with layers.SolveScope(model, max_iter=n):
            model.predict(INPUTS, verbose=0)
    assert len(traces) == count > 0


def test_fit_validates_with_the_budget_and_trains_without_it():
    model = _compiled_model()
    data = {"validation_data": (INPUTS, TARGETS), "epochs": 2, "verbose": 0}
    with layers.SolveScope(model, max_iter=2, tol=0.0) as scope:
        history = model.fit(INPUTS, TARGETS, **data).history
    assert history["val_deq_evaluations"] == [2.0, 2.0]
    assert history["deq_evaluations"][0] > 2
    # Compiled calls would record symbolic tensors.
    assert not scope.solutions
    history = model.fit(INPUTS, TARGETS, **data).history
    assert history["val_deq_evaluations"][0] > 2


@pytest.mark.parametrize("is_traced_before", [False, True])
def test_a_function_of_the_user(is_traced_before):
    model = _compiled_model()
    inner = tf.function(lambda x: model(x, training=False))
    call = tf.function(lambda x: inner(x) + 0.0)
    if is_traced_before:
        np.testing.assert_allclose(call(INPUTS), _expected(model), atol=1e-6)
    for max_iter in (1, 4):
        with layers.SolveScope(model, max_iter, tol=0.0):
            expected = _expected(model, max_iter, 0.0)
            np.testing.assert_allclose(call(INPUTS), expected, atol=1e-6)
    np.testing.assert_allclose(call(INPUTS), _expected(model), atol=1e-6)


def test_a_scope_in_a_function_takes_precedence():
    model = _compiled_model()

    @tf.function
    def call(inputs):
        with layers.SolveScope(model, max_iter=2, tol=0.0):
            return model(inputs, training=False)

    with layers.SolveScope(model, max_iter=1, tol=0.0):
        np.testing.assert_allclose(call(INPUTS), _expected(model, 2, 0.0), atol=1e-6)
        outputs = model.predict(INPUTS, verbose=0)
        np.testing.assert_allclose(outputs, _expected(model, 1, 0.0), atol=1e-6)


def test_files_have_the_budget_of_the_layer(tmp_path):
    model = _compiled_model()
    model.export(tmp_path / "keras", verbose=False)
    tf.saved_model.save(model, tmp_path / "tensorflow")
    loaded = tf.saved_model.load(tmp_path / "keras")
    signature = tf.saved_model.load(tmp_path / "tensorflow").signatures
    (outputs,) = signature["serving_default"](tf.constant(INPUTS)).values()
    np.testing.assert_allclose(outputs, _expected(model), atol=1e-6)
    with layers.SolveScope(model, max_iter=1, tol=0.0):
        np.testing.assert_allclose(loaded.serve(INPUTS), _expected(model), atol=1e-6)
