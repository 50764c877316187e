"""Budgets of scopes in functions that are compiled: `predict`, `fit` and others."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell

INPUTS = np.random.RandomState(0).normal(size=(6, 3)).astype("float32")
TARGETS = INPUTS[:, :2]


class CountingCell(TanhCell):
    """Counts how often Python runs it: a compiled function that is called does not."""

    num_calls = 0

    def call(self, state, injection):
        CountingCell.num_calls += 1
        return super().call(state, injection)


def _model(solver="fixed_point_iteration", gradient="neumann", **arguments):
    deq = layers.DEQ(
        CountingCell(4, 0.9), solver, gradient, regularizer=None, name="deq"
    )
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.0), "mse", **arguments)
    return model


def _expected(model, max_iter=None, tol=None):
    """The outputs at a budget, without a scope."""
    solution = model.get_layer("deq").solve(
        INPUTS, solvers.SolveRequest(max_iter=max_iter, tol=tol)
    )
    return model.layers[-1](solution.value).numpy()


@pytest.fixture(scope="module")
def shared():
    """A model that the tests do not change."""
    model = _model()
    one, own = (_expected(model, *budget) for budget in ((1, 0.0), ()))
    assert np.abs(one - own).max() > 0.1
    return model


def _assert_equal(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"steps_per_execution": 2}, {"jit_compile": True}, {"run_eagerly": True}],
    ids=str,
)
def test_predict_is_traced_within_a_scope(arguments):
    """Neither is the budget of the scope kept, nor is a later one ignored."""
    model = _model(**arguments)
    for max_iter in (1, None, 3):
        if max_iter is None:
            outputs = model.predict(INPUTS, batch_size=3, verbose=0)
            _assert_equal(outputs, _expected(model))
            continue
        with layers.SolveScope(max_iter, tol=0.0):
            outputs = model.predict(INPUTS, batch_size=3, verbose=0)
        _assert_equal(outputs, _expected(model, max_iter, 0.0))


def test_predict_is_traced_before_a_scope(shared):
    _assert_equal(shared.predict(INPUTS, verbose=0), _expected(shared))
    with layers.SolveScope(tol=0.3):
        _assert_equal(shared.predict(INPUTS, verbose=0), _expected(shared, tol=0.3))
    _assert_equal(shared.predict(INPUTS, verbose=0), _expected(shared))


def test_five_budgets_are_one_trace(shared):
    shared.predict(INPUTS, verbose=0)
    expected = [_expected(shared, n, 0.0) for n in range(1, 6)]
    before = CountingCell.num_calls
    for n, outputs in enumerate(expected, start=1):
        with layers.SolveScope(max_iter=n, tol=0.0):
            _assert_equal(shared.predict(INPUTS, verbose=0), outputs)
    assert CountingCell.num_calls == before


def test_a_budget_above_that_of_the_solver(shared):
    expected = _expected(shared, 60, 1e-6)
    assert np.abs(expected - _expected(shared)).max() > 1e-4
    with layers.SolveScope(max_iter=60, tol=1e-6):
        _assert_equal(shared.predict(INPUTS, verbose=0), expected)


def test_xla_refuses_more_than_the_budget_that_it_compiled():
    model = _model(jit_compile=True)
    model.predict(INPUTS, verbose=0)
    with layers.SolveScope(max_iter=31):
        with pytest.raises(ValueError, match="XLA.*max_iter <= 30.*max_iter=31"):
            model.predict(INPUTS, verbose=0)


def test_evaluate(shared):
    def error(outputs):
        return pytest.approx(np.mean(np.square(outputs - TARGETS)), rel=1e-5)

    with layers.SolveScope(max_iter=1, tol=0.0):
        logs = shared.evaluate(INPUTS, TARGETS, verbose=0, return_dict=True)
    assert logs["loss"] == error(_expected(shared, 1, 0.0))
    assert logs["deq_evaluations"] == 1.0
    logs = shared.evaluate(INPUTS, TARGETS, verbose=0, return_dict=True)
    assert logs["loss"] == error(_expected(shared))


def test_fit_validates_with_the_budget_and_trains_without_it():
    model = _model(solvers.FixedPointIteration(max_iter=7, tol=None))
    data = {"validation_data": (INPUTS, TARGETS), "verbose": 0, "epochs": 2}
    with layers.SolveScope(max_iter=2) as scope:
        history = model.fit(INPUTS, TARGETS, **data).history
    assert history["deq_evaluations"] == [7.0, 7.0]
    assert history["val_deq_evaluations"] == [2.0, 2.0]
    # Compiled calls would record symbolic tensors.
    assert not scope.solutions
    history = model.fit(INPUTS, TARGETS, **data).history
    assert history["val_deq_evaluations"] == [7.0, 7.0]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("is_traced_before", [False, True])
def test_a_function_of_the_user(shared, is_nested, is_traced_before):
    call = tf.function(lambda x: shared(x, training=False))
    if is_nested:
        inner = call
        call = tf.function(lambda x: inner(x) + 0.0)
    if is_traced_before:
        _assert_equal(call(INPUTS), _expected(shared))
    for max_iter in (1, 4):
        with layers.SolveScope(max_iter, tol=0.0):
            _assert_equal(call(INPUTS), _expected(shared, max_iter, 0.0))
    _assert_equal(call(INPUTS), _expected(shared))


def test_a_scope_that_a_function_enters_takes_precedence(shared):
    @tf.function
    def call(inputs):
        with layers.SolveScope(max_iter=2, tol=0.0):
            return shared(inputs, training=False)

    with layers.SolveScope(max_iter=1, tol=0.0):
        _assert_equal(call(INPUTS), _expected(shared, 2, 0.0))


def test_nested_scopes_and_exceptions(shared):
    with layers.SolveScope(max_iter=1, tol=0.0):
        with layers.SolveScope(max_iter=3, tol=0.0):
            _assert_equal(shared.predict(INPUTS, verbose=0), _expected(shared, 3, 0.0))
        with pytest.raises(KeyError), layers.SolveScope(max_iter=2, tol=0.0):
            raise KeyError
        _assert_equal(shared.predict(INPUTS, verbose=0), _expected(shared, 1, 0.0))
    _assert_equal(shared.predict(INPUTS, verbose=0), _expected(shared))


def _in_threads(function):
    """Returns the results of eight threads that start at once."""
    results, barrier = {}, threading.Barrier(8)

    def run(i):
        barrier.wait()
        results[i] = function(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[i] for i in range(8)]


@pytest.mark.parametrize("is_one_scope", [True, False])
def test_threads_have_scopes_of_their_own(shared, is_one_scope):
    call = tf.function(lambda x: shared(x, training=False))
    own = call(INPUTS)
    one = layers.SolveScope(max_iter=2, tol=0.0)
    expected = [_expected(shared, n, 0.0) for n in (1, 2, 3)]

    def run(i):
        scope = one if is_one_scope else layers.SolveScope(1 + i % 3, tol=0.0)
        with scope:
            return [call(INPUTS).numpy() for _ in range(5)]

    for i, outputs in enumerate(_in_threads(run)):
        for output in outputs:
            _assert_equal(output, expected[1 if is_one_scope else i % 3])
    # Other threads ignore a scope.
    with layers.SolveScope(max_iter=1, tol=0.0):
        for output in _in_threads(lambda i: call(INPUTS)):
            _assert_equal(output, own)


@pytest.mark.parametrize(
    "arguments", [{"initial_states": {"deq": np.zeros((6, 4))}}, {"restarts": 2}]
)
def test_scopes_that_compiled_functions_cannot_use(shared, arguments):
    shared.predict(INPUTS, verbose=0)
    match = "cannot use the `initial_states` or `restarts`"
    with pytest.raises(ValueError, match=match), layers.SolveScope(**arguments):
        shared.predict(INPUTS, verbose=0)
    # A function that is traced within the scope is refused, too.
    with pytest.raises(ValueError, match=match), layers.SolveScope(**arguments):
        tf.function(lambda x: shared(x, training=False))(INPUTS)


def test_a_new_budget_or_tolerance_takes_effect_at_once():
    model = _model(solvers.FixedPointIteration(max_iter=30, tol=1e-3))
    model.predict(INPUTS, verbose=0)
    before = CountingCell.num_calls
    model.get_layer("deq").solver = solvers.FixedPointIteration(max_iter=2, tol=0.0)
    outputs = model.predict(INPUTS, verbose=0)
    assert CountingCell.num_calls == before
    _assert_equal(outputs, _expected(model, 2, 0.0))


REPLACED = "'deq' was replaced.*`model.compile"


def test_predict_refuses_replaced_components():
    model = _model()
    deq = model.get_layer("deq")
    for name, component in (
        ("solver", "anderson"),
        ("solver", solvers.FixedPointIteration(damping=0.5)),
        ("solver", solvers.FixedPointIteration(tol=None)),
        ("initial_state", "normal"),
    ):
        _assert_equal(model.predict(INPUTS, verbose=0), _expected(model))
        old = getattr(deq, name)
        setattr(deq, name, component)
        with pytest.raises(ValueError, match=REPLACED):
            model.predict(INPUTS, verbose=0)
        setattr(deq, name, old)
    # Inference computes no gradient and no penalty.
    deq.gradient, deq.regularizer = "implicit", "residual"
    _assert_equal(model.predict(INPUTS, verbose=0), _expected(model))
    deq.solver = solvers.FixedPointIteration(damping=0.5)
    model.compile(model.optimizer, "mse")
    _assert_equal(model.predict(INPUTS, verbose=0), _expected(model))


def test_fit_refuses_replaced_components():
    model = _model()
    deq = model.get_layer("deq")

    def fit(name=None, component=None):
        """Two epochs; replaces the component between them."""

        def replace(epoch, logs):
            if epoch == 1 and name is not None:
                setattr(deq, name, component)

        callback = keras.callbacks.LambdaCallback(on_epoch_begin=replace)
        fit = {"epochs": 2, "verbose": 0, "callbacks": [callback]}
        return model.fit(INPUTS, TARGETS, **fit).history["loss"]

    for name, component in (
        ("solver", "anderson"),
        ("solver", solvers.FixedPointIteration(max_iter=3)),
        ("gradient", "implicit"),
        ("regularizer", "residual"),
        ("initial_state", "normal"),
        ("max_iter_jitter", 3),
    ):
        old = getattr(deq, name)
        with pytest.raises(ValueError, match=REPLACED):
            fit(name, component)
        setattr(deq, name, old)
    deq.gradient = "phantom"
    model.compile(model.optimizer, "mse")
    assert np.isfinite(fit()).all()


@pytest.mark.parametrize(
    "components",
    [
        {
            "initial_state": {
                "class_name": "Mixed",
                "initial_states": ["cell", "normal"],
            },
            "gradient": {"class_name": "ImplicitGradient", "solver": "anderson"},
        },
        {
            "initial_state": "learned",
            "gradient": {"class_name": "TruncatedGradient", "num_steps": [1, 1]},
        },
    ],
    ids=["mixed-implicit", "learned-truncated"],
)
def test_an_equal_component_is_not_a_replacement(components):
    """A phase of training sets all components, also those that stay."""
    deq = layers.DEQ(TanhCell(4), "fixed_point_iteration", name="deq", **components)
    model = keras.Sequential([keras.Input((3,)), deq])
    model.compile("sgd", "mse")
    targets = np.zeros((len(INPUTS), 4), "float32")

    def set_all(*arguments):
        for name, component in components.items():
            setattr(deq, name, component)

    same = keras.callbacks.LambdaCallback(on_epoch_begin=set_all)
    model.fit(INPUTS, targets, epochs=2, verbose=0, callbacks=[same])
    model.predict(INPUTS, verbose=0)
    set_all()
    model.predict(INPUTS, verbose=0)


def test_an_export_of_keras_has_the_budget_of_the_layer(shared, tmp_path):
    with layers.SolveScope(max_iter=1, tol=0.0):
        shared.predict(INPUTS, verbose=0)
    shared.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    _assert_equal(loaded.serve(INPUTS), _expected(shared))
    with layers.SolveScope(max_iter=1, tol=0.0):
        _assert_equal(loaded.serve(INPUTS), _expected(shared))


def test_tensorflow_saves_a_model(shared, tmp_path):
    shared.predict(INPUTS, verbose=0)
    tf.saved_model.save(shared, tmp_path)
    serve = tf.saved_model.load(tmp_path).signatures["serving_default"]
    (outputs,) = serve(tf.constant(INPUTS)).values()
    _assert_equal(outputs, _expected(shared))
