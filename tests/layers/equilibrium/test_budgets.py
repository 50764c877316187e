"""Budgets and tolerances of one call, of a scope, and of training steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell
from tests.regimes import XLA_IS_SLOW, slow

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")
TARGETS = INPUTS[:, :2]


def _deq(gradient="implicit", **arguments):
    arguments = {"solver": "fixed_point_iteration", "seed": 1, **arguments}
    deq = layers.DEQ(TanhCell(5, 0.9), gradient=gradient, name="deq", **arguments)
    deq.build((None, 3))
    return deq


def _model(gradient="truncated", **arguments):
    deq = _deq(gradient, **arguments)
    return keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])


def _compiled_model(**arguments):
    model = _model("neumann", regularizer=None)
    model.compile(keras.optimizers.SGD(0.0), "mse", **arguments)
    return model


def _value(deq, max_iter=None, tol=0.0):
    """The equilibrium at a budget, from `solve`."""
    return deq.solve(INPUTS, solvers.SolveRequest(max_iter=max_iter, tol=tol)).value


def _outputs(model, max_iter=None, tol=None):
    """The outputs of a model at a budget, without a scope."""
    return model.layers[-1](_value(model.get_layer("deq"), max_iter, tol)).numpy()


class TestCall:
    """`layer(inputs, max_iter=..., tol=...)`."""

    def test_call_wins_over_scope_and_scope_over_solver(self):
        deq = _deq()
        with layers.SolveScope(deq, max_iter=5, tol=0.0) as scope:
            deq(INPUTS)
            deq(INPUTS, max_iter=2)
            deq(INPUTS, tol=0.9)
        counts = [solution.num_evaluations for solution in scope.solutions.values()]
        np.testing.assert_array_equal(counts[0], 5)
        np.testing.assert_array_equal(counts[1], 2)
        assert np.mean(counts[2]) < 5
        value = deq(INPUTS, max_iter=3, tol=0.0)
        np.testing.assert_array_equal(value, _value(deq, 3))
        assert np.any(value != deq(INPUTS))
        np.testing.assert_array_equal(deq(INPUTS), _value(deq, 30, 1e-3))

    @pytest.mark.usefixtures("full_float32")
    def test_budget_may_exceed_that_of_the_solver(self):
        deq = _deq(solver={"class_name": "anderson", "max_iter": 2, "tol": None})
        value = deq(INPUTS, max_iter=40, tol=1e-6)
        np.testing.assert_allclose(value, deq.problem(INPUTS)(value), atol=1e-4)

    def test_tensors_and_variables_need_no_new_trace(self):
        deq, budget = _deq(), keras.Variable(2, dtype="int32", trainable=False)
        traces = []

        @tf.function
        def call(inputs, max_iter, tol):
            traces.append(1)
            value = deq(inputs, max_iter=max_iter, tol=tol)
            return value, deq(inputs, max_iter=budget, tol=0.0)

        for max_iter in (1, 4, 40):
            budget.assign(max_iter + 1)
            budget_of_call = tf.constant(max_iter, tf.int16)
            value, other = call(INPUTS, budget_of_call, tf.constant(1e-6))
            np.testing.assert_allclose(value, _value(deq, max_iter, 1e-6), atol=1e-6)
            np.testing.assert_allclose(other, _value(deq, max_iter + 1), atol=1e-6)
        with layers.SolveScope(deq, max_iter=3):
            value, _ = call(INPUTS, tf.constant(1, tf.int16), tf.constant(0.0))
        np.testing.assert_allclose(value, _value(deq, 1), atol=1e-6)
        assert len(traces) == 1

    def test_numbers_are_part_of_a_functional_model(self, tmp_path):
        deq = _deq()
        inputs = keras.Input((3,))
        model = keras.Model(inputs, deq(inputs, max_iter=3, tol=0.0))
        expected = _value(deq, 3)
        np.testing.assert_allclose(model(INPUTS), expected, atol=1e-6)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(loaded(INPUTS), expected, atol=1e-6)
        model.compile("sgd", "mse", run_eagerly=True)
        data = {"x": INPUTS, "y": np.zeros((4, 5))}
        history = model.fit(
            **data, verbose=0, validation_data=tuple(data.values())
        ).history
        assert history["deq_evaluations"] == history["val_deq_evaluations"] == [3.0]

    @pytest.mark.parametrize("gradient", ["truncated", "unrolled"])
    def test_training_uses_the_numbers_of_the_call(self, gradient):
        deq = _deq(gradient, solver=solvers.FixedPointIteration(tol=None))
        twin = _deq(gradient, solver=solvers.FixedPointIteration(4, tol=None))
        value = deq(INPUTS, training=True, max_iter=4)
        np.testing.assert_allclose(value, twin(INPUTS, training=True), atol=1e-6)
        assert deq.solver.max_iter == 30
        call = tf.function(lambda n: deq(INPUTS, training=True, max_iter=n))
        with pytest.raises(ValueError, match="In training, `max_iter`"):
            call(tf.constant(3))

    def test_mask_reaches_a_call_with_a_tensor_budget(self):
        deq = _deq()
        texts = np.ones((2, 4, 3), "float32")
        mask = np.array([[True, True, False, False], [True, True, True, False]])
        inputs = keras.layers.Masking()(texts * mask[..., None])
        value = deq(inputs, max_iter=tf.constant(3))
        np.testing.assert_array_equal(np.any(value != 0, axis=-1), mask)


class TestScope:
    """`SolveScope`: calls of whole models, and what their solves found."""

    @XLA_IS_SLOW
    def test_budget_and_solutions(self, regime):
        model = _model("unrolled")

        def call(inputs, max_iter, tol):
            with layers.SolveScope(model, max_iter, tol) as scope:
                outputs = model(inputs, training=False)
            return outputs, scope.solutions["deq"]

        call = regime(call)
        for max_iter, tol in ((2, 1e-5), (8, 0.5)):
            budget = tf.constant(max_iter, tf.int64), tf.constant(tol)
            outputs, solution = call(INPUTS, *budget)
            expected = model.get_layer("deq").solve(
                INPUTS, solvers.SolveRequest(max_iter=max_iter, tol=tol)
            )
            for name in ("num_evaluations", "status"):
                np.testing.assert_array_equal(
                    getattr(solution, name), getattr(expected, name)
                )
            np.testing.assert_allclose(outputs, _outputs(model, max_iter, tol), 1e-5)

    def test_training_ignores_the_budget_and_records_its_output(self):
        deq = _deq("unrolled", regularizer=None)
        with layers.SolveScope(deq, max_iter=1) as scope:
            trained = deq(INPUTS, training=True)
        np.testing.assert_allclose(trained, deq(INPUTS), atol=1e-6)
        np.testing.assert_array_equal(scope.solutions["deq"].value, trained)
        start = np.full((4, 5), np.nan, "float32")
        start[0] = trained[0]
        with layers.SolveScope(deq, initial_states={"deq": start}) as scope:
            deq(INPUTS, training=True)
        counts = scope.solutions["deq"].num_evaluations.numpy()
        assert counts[0] == 1 < counts[2]

    def test_scope_keeps_gradients_and_metrics(self):
        model = _model("neumann")
        deq, inputs = model.get_layer("deq"), tf.constant(INPUTS)
        slopes = []
        for arguments in ({"max_iter": 2, "tol": 0.0}, {}):
            scope = layers.SolveScope(model, max_iter=2, tol=0.0)
            with scope, tf.GradientTape() as tape:
                loss = tf.reduce_sum(deq(inputs, training=False, **arguments))
            slopes.append(tape.gradient(loss, deq.cell.recurrent.kernel.value))
            assert float(deq.metrics[0].result()) == 2.0
        np.testing.assert_allclose(*slopes)
        assert np.any(slopes[0] != 0)

    def test_several_layers_and_the_innermost_scope(self):
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
        counts = [int(s.batch_evaluations) for s in outer.solutions.values()]
        assert counts == [3, 3, 3]

    def test_initial_states_of_some_samples(self):
        model = _model()
        cold = model.get_layer("deq").solve(INPUTS)
        start = cold.value.numpy()
        start[2] = np.nan
        with layers.SolveScope(model, initial_states={"deq": start}) as scope:
            model(INPUTS)
        evaluations = scope.solutions["deq"].num_evaluations.numpy()
        assert evaluations[2] == cold.num_evaluations[2] > 1
        assert (evaluations[[0, 1, 3]] == 1).all()

    def test_exception_within_the_scope_is_raised(self):
        states = {"misspelled": np.zeros((4, 5), "float32")}
        with pytest.raises(KeyError):
            with layers.SolveScope(_model(), 1, initial_states=states):
                raise KeyError

    @pytest.mark.parametrize(
        "arguments, is_traced_before",
        [
            ({"jit_compile": True}, True),
            slow({}, True),
            slow({"steps_per_execution": 2}, False),
            slow({"run_eagerly": True}, False),
        ],
        ids=str,
    )
    def test_predict_reads_the_budget_at_each_call(self, arguments, is_traced_before):
        model, traces = _compiled_model(**arguments), []
        cell = model.get_layer("deq").cell
        call = cell.call
        cell.call = lambda *args: traces.append(1) or call(*args)

        def check(*budget):
            outputs = model.predict(INPUTS, verbose=0)
            np.testing.assert_allclose(outputs, _outputs(model, *budget), atol=1e-5)

        if is_traced_before:
            check()
        for max_iter in (1, 60):  # The solver has 30.
            with layers.SolveScope(model, max_iter, tol=0.0):
                check(max_iter, 0.0)
        traces.clear()
        with layers.SolveScope(model, tol=0.3):
            model.predict(INPUTS, verbose=0)
            assert bool(traces) == ("run_eagerly" in arguments)
            check(30, 0.3)
        check()

    def test_fit_validates_with_the_budget_and_trains_without_it(self):
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

    def test_scope_around_and_within_functions(self):
        model = _compiled_model()
        inner = tf.function(lambda x: model(x, training=False))
        outer = tf.function(lambda x: inner(x) + 0.0)

        @tf.function
        def with_scope(inputs):
            with layers.SolveScope(model, max_iter=2, tol=0.0):
                return model(inputs, training=False)

        np.testing.assert_allclose(outer(INPUTS), _outputs(model), atol=1e-6)
        for max_iter in (1, 4):
            with layers.SolveScope(model, max_iter, tol=0.0):
                expected = _outputs(model, max_iter, 0.0)
                np.testing.assert_allclose(outer(INPUTS), expected, atol=1e-6)
                expected = _outputs(model, 2, 0.0)
                np.testing.assert_allclose(with_scope(INPUTS), expected, atol=1e-6)
        np.testing.assert_allclose(outer(INPUTS), _outputs(model), atol=1e-6)

    def test_files_have_the_budget_of_the_layer(self, tmp_path):
        model = _compiled_model()
        model.export(tmp_path / "keras", verbose=False)
        tf.saved_model.save(model, tmp_path / "tensorflow")
        loaded = tf.saved_model.load(tmp_path / "keras")
        signature = tf.saved_model.load(tmp_path / "tensorflow").signatures
        (outputs,) = signature["serving_default"](tf.constant(INPUTS)).values()
        np.testing.assert_allclose(outputs, _outputs(model), atol=1e-6)
        with layers.SolveScope(model, max_iter=1, tol=0.0):
            np.testing.assert_allclose(loaded.serve(INPUTS), _outputs(model), 1e-5)


class TestJitter:
    """Budgets of training steps that are drawn."""

    @pytest.mark.parametrize(
        "gradient, solver, regime",
        [
            ("phantom", "fixed_point_iteration", {"run_eagerly": True}),
            slow("phantom", "fixed_point_iteration", {}),
            slow("neumann", "anderson", {"jit_compile": True}),
            slow("implicit", "broyden", {"run_eagerly": True}),
        ],
    )
    def test_training_draws_and_evaluation_does_not(self, gradient, solver, regime):
        solver = {"class_name": solver, "max_iter": 6, "tol": 0.0}
        arguments = {"regularizer": None, "seed": 3, "max_iter_jitter": 3}
        model = keras.Sequential([_deq(gradient, solver=solver, **arguments)])
        model.compile(keras.optimizers.SGD(0.0), loss="mse", **regime)
        targets = np.ones((4, 5), "float32")
        data = {"x": INPUTS, "y": targets, "validation_data": (INPUTS, targets)}
        history = model.fit(**data, epochs=6, verbose=0).history
        assert set(history["deq_evaluations"]) <= {3, 4, 5, 6}
        assert len(set(history["deq_evaluations"])) > 2
        assert set(history["val_deq_evaluations"]) == {6}
        # The adjoint equation has the whole budget.
        adjoint = set(history.get("deq_adjoint_evaluations", [6]))
        assert adjoint == {6} or gradient == "neumann"

    def _draws(self, deq, count=4):
        draws = []
        for _ in range(count):
            deq.metrics[0].reset_state()
            deq(INPUTS, training=True)
            draws.append(int(deq.metrics[0].result()))
        return draws

    def test_draws_follow_from_the_seed_and_its_state(self):
        solver = solvers.FixedPointIteration(max_iter=9, tol=0.0)
        arguments = {"solver": solver, "regularizer": None, "max_iter_jitter": 8}
        one, same, other = (
            _deq("phantom", **{**arguments, "seed": seed}) for seed in (3, 3, 4)
        )
        draws = self._draws(one)
        assert draws == self._draws(same) != self._draws(other)
        other.seed_generator.state.assign(one.seed_generator.state)
        assert self._draws(one) == self._draws(other)

    def test_all_budgets_are_equally_likely(self):
        solver = solvers.FixedPointIteration(max_iter=6, tol=0.0)
        arguments = {"regularizer": None, "seed": 5, "max_iter_jitter": 3}
        deq = _deq("phantom", solver=solver, **arguments)

        @tf.function
        def budget():
            deq.metrics[0].reset_state()
            deq(INPUTS, training=True)
            return deq.metrics[0].result()

        counts = np.bincount([int(budget()) for _ in range(200)], minlength=7)
        assert counts[:3].sum() == 0
        # Binomial(200, 1/4): five standard deviations.
        np.testing.assert_allclose(counts[3:], 50, atol=31)

    @pytest.mark.parametrize("gradient", ["truncated", "unrolled"])
    def test_jitter_is_limited_to_the_budget_of_a_call(self, gradient):
        solver = solvers.FixedPointIteration(max_iter=24)
        deq = _deq(gradient, solver=solver, max_iter_jitter=20)
        deq(INPUTS, training=True, max_iter=3)
        assert float(deq.metrics[0].result()) >= 1
        deq.solver = solvers.FixedPointIteration(max_iter=2)
        deq(INPUTS, training=True)


@pytest.mark.parametrize("regime", ["eager", "graph"], indirect=True)
def test_without_a_tolerance_an_exact_equilibrium_does_not_stop_a_solve(regime):
    """f(0) = 0: the residual is 0 from the first evaluation on."""
    deq = layers.DEQ(TanhCell(2), solvers.FixedPointIteration(6, None), name="deq")
    deq.build((None, 3))
    for weight in deq.cell.weights:
        weight.assign(tf.zeros_like(weight))

    @regime
    def count(inputs):
        with layers.SolveScope(deq) as scope:
            deq(inputs)
        return scope.solutions["deq"].num_evaluations

    np.testing.assert_array_equal(count(tf.constant(INPUTS)), 6)
