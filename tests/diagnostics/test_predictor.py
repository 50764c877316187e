"""What models return at budgets and from several initial states, on closed forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics, layers
from deq_keras.solvers import Anderson, FixedPointIteration, PeacemanRachford
from tests import regimes

VECTORS = np.array([[1, 1], [1, -1], [-1, -1]], "float32")


class Map(layers.EquilibriumCell):
    """A function of state and injection, which starts from zeros or the injection."""

    def __init__(self, function, starts_from_injection=False):
        super().__init__()
        self.function = function
        self.starts_from_injection = starts_from_injection

    def initial_state(self, injection):
        return injection if self.starts_from_injection else 0.0 * injection

    def call(self, state, injection):
        return self.function(state, injection)


def _deq(*cell):
    return layers.DEQ(Map(*cell), FixedPointIteration(60, 1e-6), "implicit", None)


@pytest.fixture
def contraction():
    return _deq(lambda z, u: 0.5 * z + u)


@pytest.fixture
def two_attractors():
    """Every entry is drawn to a solution of a = tanh(3 a), or stays at zero."""
    return _deq(lambda z, u: tf.tanh(3.0 * z), True)


def _wandering(tol, gradient="unrolled"):
    """A model whose iterates wander: the last one is not the best one."""
    cell = layers.DenseCell(8, activation="sigmoid")
    deq = layers.DEQ(cell, FixedPointIteration(12, tol), gradient, None)
    model = keras.Sequential([keras.Input((3,)), deq])
    kernel = np.random.default_rng(0).normal(size=(8, 8))
    cell.recurrent.kernel.assign(6.0 * kernel)
    return model, np.random.default_rng(1).normal(size=(64, 3)).astype("float32")


@pytest.mark.parametrize("tol", (None, 0.02))
@pytest.mark.parametrize("jit_compile", [False, regimes.slow(True)])
def test_outputs_equal_predict(tol, jit_compile):
    model, inputs = _wandering(tol)
    model.compile(jit_compile=jit_compile)
    predict = diagnostics.Predictor(model)
    # XLA rounds in another way, which many chaotic evaluations would amplify.
    for budget in (3, 4) if jit_compile else (None, 12, 5):
        outputs, solutions = predict(inputs, budget)
        with layers.SolveScope(model, max_iter=budget):
            expected = model.predict(inputs, verbose=0)
        np.testing.assert_allclose(outputs, expected, atol=1e-4)
        (solution,) = solutions.values()
        assert np.max(solution.num_evaluations) == (budget or 12)
    # Another tolerance stops samples earlier, and restores the model.
    assert np.all(predict(inputs, 12, 1e9).solution.num_evaluations == 1)
    np.testing.assert_array_equal(predict(inputs, budget).outputs, outputs)


def test_replaced_solver_is_used():
    model, inputs = _wandering(1e-3, "implicit")
    predict = diagnostics.Predictor(model)
    predict(inputs)
    model.layers[-1].solver = Anderson(7)
    model.compile()
    expected = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(predict(inputs).outputs, expected, atol=1e-5)


def test_several_solves(contraction):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, contraction(contraction(inputs)))
    prediction = diagnostics.Predictor(model)(VECTORS)
    np.testing.assert_allclose(prediction.outputs, 4 * VECTORS, atol=1e-4)
    assert list(prediction.solutions) == [contraction.name, f"{contraction.name}_2"]
    with pytest.raises(ValueError, match="Received"):
        prediction.solution  # noqa: B018


@regimes.ALL_BUT_EAGER_ARE_SLOW
def test_contraction_forgets_its_initial_state(regime, contraction):
    found = regime(
        lambda inputs: diagnostics.compare_initial_states(contraction, inputs)
    )(VECTORS)
    np.testing.assert_allclose(found.alignment, np.ones((3, 3)), atol=1e-5)
    np.testing.assert_array_equal(found.converged, np.ones((4, 3), bool))
    np.testing.assert_allclose(found.outputs, np.stack([2 * VECTORS] * 4), atol=1e-4)
    agreement = diagnostics.prediction_agreement(found.outputs > 0)
    np.testing.assert_array_equal(agreement, np.ones(3))
    assert np.all(found.num_evaluations > 10)


def test_two_attractors(two_attractors):
    found = diagnostics.compare_initial_states(
        two_attractors, VECTORS, ("other", "zeros", "cell")
    )
    # Where another sample ended, each stays: the second, the third, the first.
    np.testing.assert_allclose(found.alignment[0], [0, 0, -1], atol=1e-6)
    np.testing.assert_array_equal(found.alignment[1], [0, 0, 0])
    np.testing.assert_allclose(found.alignment[2], [1, 1, 1], atol=1e-6)
    rows = [[1, 1], [1, 0], [0, 0]]
    expected = [rows, rows[1:] + rows[:1], np.zeros((3, 2)), rows]
    np.testing.assert_array_equal(found.outputs > 0, expected)
    agreement = diagnostics.prediction_agreement(found.outputs[:3] > 0)
    np.testing.assert_allclose(agreement, [0, 1 / 3, 1 / 3], atol=1e-6)
    assert np.all(found.converged)


def test_rotation_does_not_converge():
    rotation = _deq(lambda z, u: tf.stack([-z[:, 1], z[:, 0]], axis=1), True)
    found = diagnostics.compare_initial_states(
        rotation, VECTORS, ["other"], max_iter=40
    )
    assert not np.any(found.converged)
    np.testing.assert_allclose(found.residual, np.full((2, 3), 2**0.5), rtol=1e-6)
    assert np.all(found.num_evaluations == 40)


def test_drawn_initial_states_depend_on_the_seed(two_attractors):
    def signs(seed):
        found = diagnostics.compare_initial_states(
            two_attractors, VECTORS, ["normal"], seed=seed
        )
        return (found.outputs[1].numpy() > 0).tolist()

    assert signs(0) == signs(0)
    assert any(signs(seed) != signs(0) for seed in range(1, 5))


def test_alignment_of_nests():
    one = {"a": np.array([[3.0], [0.0], [0.0]]), "b": np.array([[4.0], [0], [0]])}
    two = {"a": np.array([[4.0], [0.0], [1.0]]), "b": np.array([[3.0], [0], [0]])}
    np.testing.assert_allclose(diagnostics.alignment_score(one, two), [0.96, 1.0, 0.0])


def test_one_initial_state_raises():
    with pytest.raises(ValueError, match="Received"):
        diagnostics.prediction_agreement(np.zeros((1, 3, 2), "int32"))


@pytest.mark.parametrize("solver", [FixedPointIteration, Anderson])
def test_iterates_are_what_each_budget_returns(solver):
    model, inputs = _wandering(1e-3, "implicit")
    deq = model.layers[-1]
    states = diagnostics.iterates(model, inputs, 6)
    assert states.shape == (6, 64, 8)
    deq.solver = solver(6, tol=None)
    states = diagnostics.iterates(model, inputs, 6)
    for budget in (1, 2, 6):
        with layers.SolveScope(deq, max_iter=budget):
            expected = deq(inputs)
        np.testing.assert_allclose(states[budget - 1], expected, atol=1e-6)


def test_iterates_of_a_splitting():
    deq = layers.DEQ(layers.MonotoneDenseCell(4), PeacemanRachford(tol=None))
    expected = deq.solve(VECTORS).value
    states = diagnostics.iterates(deq, VECTORS, 50)
    np.testing.assert_allclose(states[-1], expected, atol=1e-6)


def test_overthinking_is_the_loss_of_the_best_budget():
    assert diagnostics.overthinking([1, 2, 10, 20], [0.5, 0.75, 0.75, 0.25]) == 0.5
    # Ten times the best of all was not measured.
    assert diagnostics.overthinking([1, 10, 50], [0.5, 0.25, 1.0]) == 0.25
    # The smaller of two that are best.
    assert diagnostics.overthinking([1, 2, 10, 20], [1.0, 1.0, 0.75, 0.5]) == 0.25
    assert diagnostics.overthinking([1, 10], [0.25, 1.0]) == -0.75


def test_rank_correlation():
    assert diagnostics.rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1.0)
    assert diagnostics.rank_correlation([1, 2, 3], [5, 4, -9]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4.
    expected = 4.5 / np.sqrt(4.5 * 5.0)
    assert diagnostics.rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(
        expected
    )
    assert np.isnan(diagnostics.rank_correlation([1, 1, 1], [1, 2, 3]))
    assert np.isnan(diagnostics.rank_correlation([1, np.nan, 3], [1, 2, 3]))


@pytest.mark.parametrize("first, second", [([1, 2], [1, 2, 3]), ([1], [1])])
def test_rank_correlation_of_other_shapes_raises(first, second):
    with pytest.raises(ValueError, match="Received"):
        diagnostics.rank_correlation(first, second)


def test_own_initial_state_repeats_the_solve(contraction):
    found = diagnostics.compare_initial_states(contraction, VECTORS, others=["cell"])
    own, again = found.num_evaluations.numpy()
    np.testing.assert_array_equal(own, again)
    np.testing.assert_array_equal(*found.residual.numpy())


def test_masks_of_inputs_are_kept():
    roll = _deq(lambda z, u: 0.5 * tf.roll(z, 1, 1) + u)
    inputs = keras.layers.Embedding(6, 4, mask_zero=True)(np.array([[1, 2, 0, 0]]))
    expected = roll(inputs)
    found = diagnostics.Predictor(roll)(inputs).outputs
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(roll(tf.identity(inputs)) - expected).max() > 1e-3


@pytest.mark.parametrize("change", ["quantize", "enable_lora"])
def test_a_changed_layer_is_predicted(change):
    head = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((3,)), layers.DEQ(layers.DenseCell(4)), head])
    predict, inputs = diagnostics.Predictor(model), np.ones((2, 3), "float32")
    before = predict(inputs).outputs
    if change == "quantize":
        head.quantize("int8")
    else:
        head.enable_lora(2)
        head.lora_kernel_b.assign(np.ones((2, 2)))
    found = predict(inputs).outputs
    np.testing.assert_array_equal(found, diagnostics.Predictor(model)(inputs).outputs)
    assert np.abs(found - before).max() > 0


def test_starts_replace_the_state_that_a_model_gives():
    """tanh(3 z) = z has the solutions 0 and +-0.995."""
    inputs = keras.Input((2,))
    deq = _deq(lambda z, u: tf.tanh(3 * z) + 0 * u)
    model = keras.Model(inputs, deq(inputs, initial_state=inputs))
    found = diagnostics.compare_initial_states(model, VECTORS, ("zeros",))
    np.testing.assert_allclose(np.abs(found.outputs[0]), 0.9949, atol=1e-4)
    np.testing.assert_array_equal(found.outputs[1], 0 * VECTORS)


def test_an_invalid_number_of_iterates_raises():
    with pytest.raises(ValueError, match="`max_iter`.*Received"):
        diagnostics.iterates(layers.DEQ(layers.DenseCell(2)), VECTORS, 0)
