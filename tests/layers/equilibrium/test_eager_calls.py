"""Eager calls that repeat run as compiled functions, which are never stale."""

import collections
import datetime
import functools
import gc
import itertools
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import layers, solvers
from deq_keras.core.fingerprint import fingerprint
from deq_keras.layers.equilibrium import eager_calls

X = np.random.RandomState(0).normal(size=(3, 4)).astype("float32")
SCALE = 0.5
LOG = []
SETTINGS = types.SimpleNamespace(scales={"one": 0.5})


class Cell(layers.EquilibriumCell):
    """f(z, u) = scale * tanh(z W) + u."""

    scale = 0.5

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1],) * 2, name="kernel")

    def inject(self, inputs):
        if not self.built:
            self.build(inputs.shape)
        return inputs

    def call(self, state, injection):
        return self.scale * ops.tanh(state @ self.kernel) + injection

    def initial_state(self, injection):
        return ops.zeros_like(injection)


def _layer(cell=None, solver="fixed_point_iteration", **arguments):
    deq = layers.DEQ(cell or Cell(), solver, **arguments)
    for _ in range(3):
        deq(X)
    return deq


def _is_compiled(deq):
    return bool(deq._eager_calls._functions)


def _op_by_op(deq, inputs=X, **arguments):
    tf.config.run_functions_eagerly(True)
    try:
        return np.array(deq(inputs, **arguments))
    finally:
        tf.config.run_functions_eagerly(False)


def _check(deq):
    """The next calls compute what the cell is now."""
    for _ in range(3):
        np.testing.assert_array_equal(deq(X), _op_by_op(deq))


@pytest.fixture(autouse=True)
def few_untraced_calls(monkeypatch):
    monkeypatch.setattr(eager_calls, "_NUM_UNTRACED", 1)


def test_the_seventh_call_starts_few_kernels(monkeypatch):
    monkeypatch.undo()
    deq = layers.DEQ(Cell(), solvers.Anderson(12, 0.0))
    for _ in range(6):
        before = np.array(deq(X))
        assert not _is_compiled(deq)
    for size in (3, 3, 2, 1, 3):
        np.testing.assert_array_equal(deq(X[:size]), before[:size])
    assert len(deq._eager_calls._functions) == 1
    (function,) = deq._eager_calls._functions.values()
    assert function.function.experimental_get_tracing_count() <= 2


class Other(Cell):
    def call(self, state, injection):
        return super().call(state, injection) * SCALE


class Configured(Cell):
    """Reads an object of the module, which changes."""

    def call(self, state, injection):
        return super().call(state, injection) * SETTINGS.scales["one"]


def _set_global(deq):
    globals()["SCALE"] = 0.3


def _enable_lora(deq):
    deq.cell.layer.enable_lora(2)
    deq.cell.layer.lora_kernel_b.assign(np.full((2, 4), 0.1))


CHANGES = {
    "attribute": (Cell, lambda deq: setattr(deq.cell, "scale", 0.2)),
    "global": (Other, _set_global),
    "namespace": (Configured, lambda deq: SETTINGS.scales.update(one=0.3)),
    "class": (
        lambda: type("New", (Cell,), {})(),
        lambda deq: setattr(Cell, "scale", 0.3),
    ),
    "weight": (Cell, lambda deq: deq.cell.kernel.assign(deq.cell.kernel * 0.5)),
    "tensor": (
        lambda: layers.cell_from(Shifted()),
        lambda deq: setattr(deq.cell.layer, "shift", tf.constant(2.0)),
    ),
    "array": (
        lambda: layers.cell_from(Shifted()),
        lambda deq: deq.cell.layer.table.__setitem__(0, 3.0),
    ),
    "lora": (lambda: layers.cell_from(keras.layers.Dense(4, "tanh")), _enable_lora),
    "policy": (Cell, lambda deq: setattr(deq.cell, "dtype_policy", "mixed_bfloat16")),
    "solver": (Cell, lambda deq: setattr(deq, "solver", solvers.Broyden(3, None))),
    "budget": (
        Cell,
        lambda deq: setattr(deq, "solver", solvers.FixedPointIteration(2, None)),
    ),
}


class Shifted(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.shift, self.table = tf.constant(1.0), np.ones(4, "float32")

    def compute_output_shape(self, shape):
        return shape

    def call(self, inputs):
        return 0.3 * inputs + self.shift * self.table


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    monkeypatch.setitem(SETTINGS.scales, "one", 0.5)
    monkeypatch.setattr(Cell, "scale", 0.5)
    make, change = CHANGES[name]
    deq = _layer(make())
    assert _is_compiled(deq)
    before = np.array(deq(X))
    change(deq)
    _check(deq)
    assert np.abs(tf.cast(deq(X), "float32") - before).max() > 1e-3 or name == "policy"


def test_training_steps_have_penalties_and_gradients():
    deq = _layer(seed=0)
    for _ in range(3):
        with tf.GradientTape() as tape:
            value = deq(X, training=True)
            loss = tf.reduce_sum(value) + sum(deq.losses)
        assert len(deq.losses) == 1
        slope = tape.gradient(loss, deq.trainable_variables)
        assert np.any(slope[0] != 0)


@pytest.mark.parametrize("gradient", ["implicit", "neumann", "unrolled"])
def test_gradients_of_repeated_calls(gradient):
    deq = _layer(gradient=gradient, regularizer=None)

    def slopes(call):
        inputs = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(call(inputs, training=True) ** 2)
        return tape.gradient(loss, [inputs, *deq.trainable_variables])

    tf.config.run_functions_eagerly(True)
    expected = slopes(deq)
    tf.config.run_functions_eagerly(False)
    for _ in range(3):
        for one, two in zip(slopes(deq), expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_metrics_of_the_adjoint_solve():
    deq = layers.DEQ(Cell(), "anderson", "implicit", None, name="deq")
    inputs = tf.constant(X)
    found = []
    for _ in range(3):
        for metric in deq.metrics:
            metric.reset_state()
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(deq(inputs, training=True))
        tape.gradient(loss, inputs)
        found.append([float(metric.result()) for metric in deq.metrics])
    assert _is_compiled(deq) and found[0][4] > 1  # Evaluations.
    np.testing.assert_allclose(found[1:], found[:1] * 2, rtol=1e-4)


def test_models_that_run_eagerly_run_operation_by_operation(capsys):
    deq = layers.DEQ(Cell(), solvers.FixedPointIteration(5, None))
    model = keras.Sequential([keras.Input((4,)), deq])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, X, epochs=4, verbose=0)
    assert not _is_compiled(deq)


class Prints(Cell):
    def call(self, state, injection):
        print("call")
        return super().call(state, injection)


class Counts(Cell):
    num_calls = 0

    def call(self, state, injection):
        self.num_calls += 1
        return super().call(state, injection)


class Collects(Cell):
    def call(self, state, injection):
        LOG.append(1)
        return super().call(state, injection)


class Inherits(Prints):
    def call(self, state, injection):
        return super().call(state, injection)


class Draws(Cell):
    def call(self, state, injection):
        np.random.normal()
        return super().call(state, injection)


@pytest.mark.parametrize("make", [Prints, Inherits, Counts, Collects, Draws])
def test_python_code_that_does_more_runs_each_time(make, capsys):
    cell = make()
    deq = layers.DEQ(cell, solvers.FixedPointIteration(5, None))
    counts = []
    for _ in range(5):
        LOG.clear()
        before = cell.num_calls if make is Counts else 0
        capsys.readouterr()
        value = deq(X)
        counts.append(
            {
                Prints: lambda: capsys.readouterr().out.count("call"),
                Inherits: lambda: capsys.readouterr().out.count("call"),
                Counts: lambda: cell.num_calls - before,
                Collects: lambda: len(LOG),
            }.get(make, lambda: 5)()
        )
        np.testing.assert_array_equal(value, _op_by_op(deq))
    assert counts[3:] == [5] * 2  # Compiling runs the code once.


class AddsLosses(Cell):
    def inject(self, inputs):
        self.add_loss(ops.sum(inputs**2))
        return super().inject(inputs)


def test_losses_of_inject():
    deq = _layer(AddsLosses(), regularizer=None)
    for _ in range(3):
        deq(X, training=True)
        np.testing.assert_allclose(deq.losses, [np.sum(X**2)], rtol=1e-6)


def test_scopes_and_calls_set_budgets():
    deq = _layer(solver=solvers.Anderson(30, 1e-6))
    for budget in (2, 5, 9):
        with layers.SolveScope(deq, max_iter=budget, tol=0.0) as scope:
            for _ in range(3):
                value = deq(X)
        solution = scope.solutions["deq_2" if "deq_2" in scope.solutions else "deq"]
        assert np.all(solution.num_evaluations == budget)
        assert solution.trace.shape[0] == budget
        np.testing.assert_allclose(deq(X, max_iter=budget, tol=0.0), value, 0, 1e-6)
    start = deq(X)
    name = deq.name
    with layers.SolveScope(deq, 1, 0.0, {name: start}) as scope:
        warm = deq(X)
    np.testing.assert_allclose(warm, start, 0, 1e-4)


def test_functions_are_freed_with_the_layer():
    deq = _layer()
    function = weakref.ref(next(iter(deq._eager_calls._functions.values())))
    layer = weakref.ref(deq)
    del deq
    gc.collect()
    assert layer() is None and function() is None


DEQUE, COUNTER = collections.deque([0.5]), itertools.count()


@functools.lru_cache
def _read_scale():
    return SCALE


@pytest.mark.parametrize(
    "code",
    [
        lambda: datetime.datetime.now(),
        lambda: DEQUE[0],
        lambda: [one for one in COUNTER],
        lambda: open("file"),
        lambda: __import__("os").environ,
    ],
)
def test_code_without_a_fingerprint(code):
    assert fingerprint(code) is None


def test_code_that_cannot_be_read_has_no_fingerprint():
    def code():
        return missing  # Its closure is empty.

    if False:
        missing = 1
    assert fingerprint(code) is None


def test_the_number_of_functions_is_limited(monkeypatch):
    monkeypatch.setattr(eager_calls, "_MOST_FUNCTIONS", 2)
    cell = layers.TransformerCell(4, 2, intermediate_dim=4)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(3))
    for length in (2, 3, 4, 5):
        inputs = np.ones((1, length, 4), "float32")
        for _ in range(3):
            np.testing.assert_array_equal(deq(inputs), _op_by_op(deq, inputs))
    assert len(deq._eager_calls._functions) == 2


def test_fingerprints_see_through_wrappers(monkeypatch):
    before = fingerprint(_read_scale).parts
    monkeypatch.setitem(globals(), "SCALE", 0.1)
    assert fingerprint(_read_scale).parts != before
