"""The DEQ layer: its values, its precision, and its life as a Keras layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, regularizers, solvers
from tests import harness
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import slow

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(7, 4)).astype("float32")


def _tanh(**kwargs):
    solver = solvers.Anderson(max_iter=12)
    arguments = {"gradient": "implicit", "regularizer": None, **kwargs}
    return layers.DEQ(TanhCell(5), solver=solver, **arguments)


@pytest.mark.usefixtures("full_float32")
def test_value_is_f_of_the_equilibrium():
    deq = _tanh()
    deq.solver = solvers.Anderson(max_iter=60, tol=1e-6)
    value = deq(INPUTS)
    injection = deq.cell.inject(INPUTS)
    np.testing.assert_allclose(value, deq.cell(value, injection), atol=1e-5)
    np.testing.assert_array_equal(value, deq(INPUTS, training=True))
    np.testing.assert_array_equal(value, deq.solve(INPUTS).value)


@pytest.mark.parametrize(
    "gradient, policy",
    [("truncated", "mixed_bfloat16"), ("unrolled", "float32"), ("implicit", "float32")],
)
def test_stateless_call_reads_the_weights_that_it_gets(gradient, policy):
    cell = TanhCell(5, dtype=policy)
    solver = solvers.FixedPointIteration(4, tol=None)
    deq = layers.DEQ(cell, solver, gradient=gradient, regularizer=None)
    deq(INPUTS)
    given = [tf.constant(1.5 * weight.numpy()) for weight in deq.trainable_weights]
    state = [weight.value for weight in deq.non_trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(given)
        outputs, _ = deq.stateless_call(given, state, INPUTS, training=True)
    stateless = tape.gradient(outputs, given)
    for weight, value in zip(deq.trainable_weights, given, strict=True):
        weight.assign(value)
    with tf.GradientTape() as tape:
        expected = deq(INPUTS, training=True)
    slopes = tape.gradient(expected, deq.trainable_weights)
    np.testing.assert_array_equal(outputs, expected)
    for one, two in zip(stateless, slopes, strict=True):
        np.testing.assert_array_equal(one, two)


def test_config_restores_every_argument():
    deq = layers.DEQ(
        TanhCell(5),
        solvers.Broyden(max_iter=12),
        gradients.PhantomGradient(2),
        regularizers.JacobianRegularizer(0.25),
        seed=3,
        max_iter_jitter=2,
        initial_state="normal",
    )
    copy = layers.DEQ.from_config(deq.get_config())
    assert (copy.cell.units, copy.seed, copy.max_iter_jitter) == (5, 3, 2)
    for name in ("solver", "gradient", "regularizer", "initial_state"):
        assert repr(getattr(copy, name)) == repr(getattr(deq, name))
        assert type(getattr(copy, name)) is type(getattr(deq, name))


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, "FixedPointIteration Truncated Residual"),
        ({"gradient": "unrolled"}, "FixedPointIteration Unrolled Residual"),
        ({"gradient": "phantom"}, "Anderson Phantom Contraction"),
        ({"gradient": "implicit"}, "Anderson Implicit Contraction"),
        (
            {"solver": solvers.FixedPointIteration(24, damping=0.5)},
            "FixedPointIteration Truncated Residual",
        ),
        (
            {"solver": solvers.FixedPointIteration(23)},
            "FixedPointIteration Unrolled Residual",
        ),
        (
            {"solver": solvers.FixedPointIteration(patience=3)},
            "FixedPointIteration Neumann Contraction",
        ),
        ({"solver": solvers.Anderson(12)}, "Anderson Neumann Contraction"),
        ({"solver": "broyden", "gradient": "unrolled"}, "Broyden Unrolled Residual"),
    ],
    ids=str,
)
def test_components_suit_each_other(given, expected):
    solver, gradient, regularizer = expected.split()
    deq = layers.DEQ(TanhCell(2), **given)
    for layer in (deq, layers.DEQ.from_config(deq.get_config())):
        assert type(layer.solver).__name__ == solver
        assert type(layer.gradient).__name__ == f"{gradient}Gradient"
        assert type(layer.regularizer).__name__ == f"{regularizer}Regularizer"


def test_time_distributed(tmp_path):
    symbolic = keras.Input((6, 3))
    deq = layers.DEQ(TanhCell(5), "fixed_point_iteration")
    outputs = keras.layers.TimeDistributed(deq)(symbolic)
    model = keras.Model(symbolic, outputs)
    assert model.output_shape == (None, 6, 5)
    assert len(model.trainable_weights) == 3
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")
    expected = deq(x.reshape(12, 3))
    np.testing.assert_allclose(np.reshape(model(x), (12, 5)), expected, atol=1e-3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)


class TestPrecision:
    """A layer computes in the dtype of its cell."""

    def test_dtype_of_the_cell_is_taken_over(self):
        inputs = INPUTS.astype("float64")
        deq = layers.DEQ(
            TanhCell(5, dtype="float64"), solvers.FixedPointIteration(60, tol=1e-12)
        )
        assert deq.compute_dtype == "float64"
        value = deq(inputs)
        assert value.dtype == "float64"
        injection = deq.cell.inject(tf.constant(inputs))
        np.testing.assert_allclose(value, deq.cell(value, injection), atol=1e-11)
        copy = layers.DEQ.from_config(deq.get_config())
        assert copy.compute_dtype == copy.cell.compute_dtype == "float64"

    @pytest.mark.parametrize(
        ("of_cell", "of_layer"), [("float64", "float32"), ("float32", "mixed_bfloat16")]
    )
    def test_cell_computes_in_its_own_dtype(self, of_cell, of_layer):
        deq = layers.DEQ(TanhCell(5, dtype=of_cell), dtype=of_layer)
        inputs = np.asarray(INPUTS).astype(of_cell)
        solved = deq.solve(inputs).value
        assert solved.dtype == of_cell
        for training in (False, True):
            value = deq(inputs, training=training, initial_state=solved)
            assert value.dtype == deq.compute_dtype
            np.testing.assert_allclose(np.asarray(value, "float32"), solved, atol=0.05)
        assert deq(keras.Input((4,))).dtype == deq.compute_dtype

    @pytest.mark.parametrize("dtype", ["mixed_bfloat16", slow("mixed_float16")])
    def test_tolerance_out_of_reach_warns(self, dtype):
        cell = TanhCell(5, dtype=dtype)
        with pytest.warns(UserWarning, match="tol=1e-05"):
            layers.DEQ(cell, solvers.Anderson(tol=1e-5))
        for tol in (None, 1e-2):
            layers.DEQ(cell, solvers.Anderson(tol=tol))
        for solver in ("auto", "anderson", "broyden"):
            statuses = layers.DEQ(cell, solver).solve(INPUTS).status
            np.testing.assert_array_equal(statuses, solvers.CONVERGED)
        assert layers.DEQ(TanhCell(5)).solver.tol == 1e-3


class TestCompact:
    """Solvers that remove samples from the batch once they are done."""

    VECTORS = np.random.RandomState(0).normal(size=(5, 4)).astype("float32")
    VECTORS[1] *= 30.0  # Saturated: done at once.
    SEQUENCES = RANDOM.normal(size=(5, 6, 8)).astype("float32")

    def _pair(self, make_cell, inputs):
        """Two layers of the same weights, of which the second one is compact."""
        pair = []
        for compact in (False, True):
            solver = solvers.Anderson(max_iter=12, tol=1e-3, compact=compact)
            pair.append(layers.DEQ(make_cell(), solver, name="deq"))
            pair[-1](inputs)
        pair[1].set_weights(pair[0].get_weights())
        return pair

    @pytest.mark.parametrize(
        "make_cell, inputs, regime",
        [
            (lambda: TwoScaleCell(3), {"x": VECTORS, "y": VECTORS}, "eager"),
            slow(lambda: layers.TransformerCell(8, 2, 16), SEQUENCES, "graph"),
        ],
        indirect=["regime"],
        ids=["nest", "transformer"],
    )
    def test_results_are_the_same(self, make_cell, inputs, regime):
        masked, compact = self._pair(make_cell, inputs)
        one, two = (regime(deq.solve)(inputs) for deq in (masked, compact))
        np.testing.assert_array_equal(one.num_evaluations, two.num_evaluations)
        np.testing.assert_array_equal(one.status, two.status)
        harness.assert_close(one.value, two.value, 1e-5)
        harness.assert_close(masked(inputs), compact(inputs), 1e-5)

    def test_gradients_outside_of_training(self):
        slopes = []
        for deq in self._pair(lambda: TanhCell(4, scale=0.9), self.VECTORS):
            loss = lambda deq=deq: deq(self.VECTORS) ** 2  # noqa: E731
            slopes.append(harness.gradients(loss, deq.trainable_weights))
        for one, two in zip(*slopes, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)

    def test_padding_and_failing_samples(self):
        inputs = self.SEQUENCES[:, :, :4].copy()
        inputs[2, 0, 0] = np.nan
        mask = np.arange(6) < np.array([[6], [2], [6], [1], [4]])
        pair = self._pair(lambda: TanhCell(4, scale=0.9), inputs)
        one, two = (deq.solve(inputs, mask=mask) for deq in pair)
        np.testing.assert_array_equal(one.status, two.status)
        np.testing.assert_array_equal(one.num_evaluations, two.num_evaluations)
        np.testing.assert_allclose(one.value, two.value, atol=1e-6)

    def test_model_is_not_compiled_by_xla(self):
        deq = layers.DEQ(TanhCell(4), solvers.FixedPointIteration(compact=True))
        model = keras.Sequential([keras.Input((4,)), deq])
        with pytest.warns(UserWarning, match="jit_compile"):
            model.compile("sgd", "mse", jit_compile=True)
        assert not model.jit_compile
        deq.solver = solvers.Anderson()
        model.compile("sgd", "mse", jit_compile=True)
        assert model.jit_compile


@pytest.mark.parametrize("frozen", ["layer", "cell"])
def test_frozen_layers_stay_frozen_in_files_and_copies(frozen, tmp_path):
    deq = layers.DEQ(layers.DenseCell(4))
    model = keras.Sequential([keras.Input((3,)), deq])
    (deq if frozen == "layer" else deq.cell).trainable = False
    assert not model.trainable_variables
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for copy in (loaded, keras.models.clone_model(model)):
        assert not copy.trainable_variables
    thawed = loaded.layers[0]
    (thawed if frozen == "layer" else thawed.cell).trainable = True
    assert len(loaded.trainable_variables) == 3
