"""Components of a layer that are chosen, replaced, and changed."""

import copy
import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, initial_states, layers, solvers
from tests.layers.cells import FunctionCell
from tests.regimes import slow

X = np.random.default_rng(0).random((6, 3), "float32")


def _deq(solver="auto", gradient="auto", regularizer="auto"):
    return layers.DEQ(layers.DenseCell(4, seed=0), solver, gradient, regularizer)


def _components(layer):
    return [repr(getattr(layer, n)) for n in ("solver", "gradient", "regularizer")]


class TestChoice:
    """`"auto"` in the constructor and later."""

    GIVEN = {
        "solver": ["auto", solvers.FixedPointIteration(23), solvers.Anderson(9)],
        "gradient": ["auto", "neumann", "unrolled"],
        "regularizer": ["auto", None],
    }

    def test_setters_choose_what_the_constructor_chooses(self):
        layer = _deq("broyden", "phantom", "jacobian")
        for given in itertools.product(*self.GIVEN.values()):
            order = list(zip(self.GIVEN, given, strict=True))
            for name, value in order if given[0] == "auto" else reversed(order):
                setattr(layer, name, value)
            assert _components(layer) == _components(_deq(*given)), given
            chosen = [name for name, value in order if value == "auto"]
            assert sorted(layer.choices) == sorted(chosen)
            for name in chosen:  # A sentence names what was chosen.
                found = type(getattr(layer, name)).__name__.lower()
                words = layer.choices[name].split("'")[1].split("_")
                assert all(word in found for word in words), layer.choices

    def test_a_loaded_layer_goes_on_choosing(self):
        layer = layers.DEQ.from_config(_deq(gradient="neumann").get_config())
        assert layer.choices == _deq(gradient="neumann").choices
        layer.gradient = "truncated"
        assert _components(layer) == _components(_deq(gradient="truncated"))

    @pytest.mark.parametrize(
        "name, value, hint",
        [
            ("solver", "gmress", None),
            ("solver", "andersen", "anderson"),
            ("gradient", "ift", "implicit"),
            ("gradient", "jfb", "phantom"),
            ("gradient", "implict", "implicit"),
        ],
    )
    def test_hints_name_what_a_layer_accepts(self, name, value, hint):
        with pytest.raises(ValueError, match=f"Received: {name}={value!r}") as error:
            _deq(**{name: value})
        message = str(error.value)
        assert "gmres'" not in message
        assert (f"Did you mean '{hint}" in message) == (hint is not None)


class TestReplacement:
    """No function computes with a component that was replaced."""

    REPLACEMENTS = {
        "solver": solvers.FixedPointIteration(3, damping=0.3),
        "gradient": gradients.UnrolledGradient(),
        "regularizer": None,
        "initial_state": "normal",
        "max_iter_jitter": 2,
        "penalty_probability": 0.5,
    }

    @pytest.mark.parametrize("name", REPLACEMENTS)
    def test_a_compiled_function_raises(self, name):
        deq = _deq(regularizer="jacobian")
        functions = (
            tf.function(lambda x: deq.problem(x).injection),
            tf.function(lambda x: deq.problem(injection=deq.inject(x)).injection),
        )
        for own in functions:
            own(X)
        setattr(deq, name, self.REPLACEMENTS[name])
        for own in functions:
            with pytest.raises(tf.errors.InvalidArgumentError, match="was replaced"):
                own(X)

    def test_a_model_raises_until_compile(self):
        deq = _deq(solvers.FixedPointIteration(30), "phantom", "jacobian")
        model = keras.Sequential([keras.Input((3,)), deq])
        model.compile("sgd", "mse")
        model.predict(X, verbose=0)
        model.train_on_batch(X, np.zeros((6, 4)))
        deq.solver = self.REPLACEMENTS["solver"]
        for call in (
            lambda: model.predict(X, verbose=0),
            lambda: model.train_on_batch(X, np.zeros((6, 4))),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="was replaced"):
                call()
        model.compile("sgd", "mse")
        model.train_on_batch(X, np.zeros((6, 4)))
        expected = model(X, training=False)
        np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=1e-6)

    @pytest.mark.parametrize("solver", ["fixed_point_iteration", slow("broyden")])
    def test_under_xla_all_samples_fail(self, solver):
        deq = _deq(solver, "neumann")
        model = keras.Sequential([keras.Input((3,)), deq])
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
        model.train_on_batch(X, np.zeros((6, 4)))
        model.predict(X, verbose=0)
        weights = model.get_weights()
        deq.regularizer = None
        logs = model.train_on_batch(X, np.zeros((6, 4)), return_dict=True)
        assert np.isnan(logs["loss"])
        assert logs[f"{deq.name}_failed"] == 1.0
        assert np.isnan(model.predict(X, verbose=0)).all()
        for before, after in zip(weights, model.get_weights(), strict=True):
            np.testing.assert_array_equal(before, after)

    def test_a_component_is_replaced_and_not_changed(self):
        deq = _deq("broyden", "phantom", "jacobian")
        for component, name in (
            (deq.solver, "max_iter"),
            (deq.gradient, "num_steps"),
            (deq.regularizer, "weight"),
        ):
            with pytest.raises(AttributeError, match=f"Received: {name}=5"):
                setattr(component, name, 5)
        changed = copy.copy(deq.solver)
        changed.max_iter = 5
        deq.solver = changed
        assert deq.solver.max_iter == 5
        deq.initial_state = state = initial_states.get("normal")
        with pytest.raises(AttributeError, match="Received: stddev=2.0"):
            state.stddev = 2.0


def _in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class TestScopes:
    """Scopes and solvers that are set in any order. The cell sums 0.9^n."""

    @staticmethod
    def _layer(max_iter=30):
        solver = solvers.FixedPointIteration(max_iter, tol=None)
        return layers.DEQ(
            FunctionCell(lambda z, u: 0.9 * z + u), solver, "unrolled", None
        )

    @staticmethod
    def _count(outputs):
        """The number of evaluations that a closed form finds in an output."""
        value = np.asarray(outputs)[0, 0]
        return round(float(np.log(1.0 - 0.1 * value) / np.log(0.9)))

    def _counts(self, model):
        x = np.ones((1, 3), "float32")
        return self._count(model(x)), self._count(model.predict(x, verbose=0))

    def test_a_solver_that_is_set_in_a_scope_keeps_its_budget(self):
        deq = self._layer(4)
        model = keras.Sequential([keras.Input((3,)), deq])
        with layers.SolveScope(model, max_iter=2):
            deq.solver = solvers.FixedPointIteration(20, tol=None)
            assert self._counts(model) == (2, 2)
        assert self._counts(model) == (20, 20)

    def test_a_scope_can_be_entered_twice(self):
        deq = self._layer()
        model = keras.Sequential([keras.Input((3,)), deq])
        scope = layers.SolveScope(model, max_iter=3)
        with scope:
            with layers.SolveScope(model, max_iter=5), scope:
                assert self._counts(model) == (3, 3)
            assert self._counts(model) == (3, 3)
        assert self._counts(model) == (30, 30)

    def test_scopes_of_two_threads_end_in_any_order(self):
        model = keras.Sequential([keras.Input((3,)), self._layer()])
        one = layers.SolveScope(model, max_iter=2)
        _in_thread(one.__enter__)
        assert self._counts(model) == (30, 2)  # Compiled functions are shared.
        with pytest.warns(UserWarning, match="Another thread"):
            two = layers.SolveScope(model, max_iter=5).__enter__()
        assert self._counts(model) == (5, 5)
        _in_thread(lambda: one.__exit__(None))
        assert self._counts(model) == (5, 5)
        two.__exit__(None)
        assert self._counts(model) == (30, 30)
