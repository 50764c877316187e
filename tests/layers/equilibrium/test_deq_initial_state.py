"""Where the layer starts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, initial_states, layers, solvers
from tests.layers.cells import FunctionCell, TanhCell, TwoScaleCell
from tests.regimes import slow

INPUTS = np.random.RandomState(0).normal(size=(6, 4)).astype("float32")
ONCE = solvers.FixedPointIteration(max_iter=1, tol=None)


def _first_state(start, training, **arguments):
    """Whose single evaluation shows the start: f(z) = z + u - u."""
    cell = FunctionCell(lambda z, u: z + 0.0 * u, lambda u: 7.0 * tf.ones_like(u))
    deq = layers.DEQ(
        cell,
        ONCE,
        "unrolled",
        regularizer=None,
        initial_state=start,
        seed=1,
        **arguments,
    )
    return deq(INPUTS, training=training).numpy()


def test_the_cell_says_where_unless_told_otherwise():
    np.testing.assert_array_equal(_first_state("cell", True), 7.0)
    np.testing.assert_array_equal(_first_state("zeros", True), 0.0)
    np.testing.assert_array_equal(_first_state("zeros", False), 0.0)


def test_random_starts_are_those_of_training():
    np.testing.assert_array_equal(_first_state("normal", False), 7.0)
    drawn = _first_state("normal", True)
    assert len(np.unique(drawn)) == drawn.size
    np.testing.assert_array_equal(drawn, _first_state("normal", True))  # The seed's.
    mixed = _first_state(
        {"class_name": "mixed", "initial_states": ["cell", "zeros"]}, True
    )
    assert set(np.unique(mixed)) <= {0.0, 7.0}


def test_each_step_draws_anew():
    deq = layers.DEQ(TanhCell(3), ONCE, "unrolled", initial_state="normal", seed=1)
    values = [deq(INPUTS, training=True).numpy() for _ in range(2)]
    assert np.all(values[0] != values[1])


def test_initial_state_is_chosen_freely_at_inference():
    deq = layers.DEQ(TanhCell(3), ONCE)
    problem = deq.problem(INPUTS)

    def state(*arguments, **options):
        request = solvers.SolveRequest(*arguments, **options)
        return deq.request(problem, request).initial_state.numpy()

    one, two = state("normal", seed=1), state(initial_states.Normal(), seed=2)
    assert np.all(one != two)
    np.testing.assert_array_equal(one, state("normal", seed=1))
    np.testing.assert_array_equal(state(), 0.0)
    for request in (solvers.SolveRequest(one), solvers.SolveRequest("normal", seed=1)):
        np.testing.assert_array_equal(deq.solve(INPUTS, request).point, one)
    # A seed draws the layer's own initial state.
    deq.initial_state = "normal"
    request = solvers.SolveRequest(seed=1)
    np.testing.assert_array_equal(deq.solve(INPUTS, request).point, one)
    np.testing.assert_array_equal(deq.solve(INPUTS).point, 0.0)


def test_an_initial_state_that_is_given_counts():
    deq = layers.DEQ(TanhCell(3), ONCE, "unrolled", initial_state="normal")
    state = np.full((6, 3), 0.25, "float32")
    expected = deq(INPUTS, initial_state=state, training=False)
    np.testing.assert_array_equal(
        deq(INPUTS, initial_state=state, training=True), expected
    )


def test_a_state_of_several_dtypes_starts_from_another():
    cell = FunctionCell(
        lambda z, u: (0.5 * z[0] + u, tf.cast(z[1], tf.float64)),
        lambda u: (tf.zeros_like(u), tf.zeros_like(u, tf.float64)),
    )
    deq = layers.DEQ(cell)
    value = deq(INPUTS)
    assert [leaf.dtype for leaf in value] == [tf.float32, tf.float64]
    for warm in (value, [leaf.numpy() for leaf in value], [INPUTS, INPUTS]):
        again = deq(INPUTS, initial_state=tuple(warm), max_iter=1)
        np.testing.assert_allclose(again[0], 0.5 * warm[0] + INPUTS, rtol=1e-6)
        np.testing.assert_array_equal(again[1], warm[1])


def test_states_of_an_rnn_cell_are_a_plain_list():
    deq = layers.DEQ(layers.cell_from(keras.layers.LSTMCell(3)), regularizer=None)
    value = deq(INPUTS)
    assert type(value) is list
    state = [leaf.numpy() for leaf in value]
    warm = deq(INPUTS, initial_state=state, max_iter=1)
    expected = deq.problem(INPUTS)(value)
    for one, other in zip(warm, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_padding_starts_at_zero():
    inputs = np.ones((2, 5, 4), "float32")
    mask = np.array([[True] * 3 + [False] * 2, [True] * 5])
    deq = layers.DEQ(TanhCell(3), ONCE, "unrolled", initial_state="normal")
    value = deq(inputs, mask=mask, training=True).numpy()
    np.testing.assert_array_equal(value[~mask], 0.0)
    assert np.all(value[mask] != 0.0)
    request = solvers.SolveRequest(seed=1)
    state = deq.request(deq.problem(inputs, mask), request).initial_state.numpy()
    np.testing.assert_array_equal(state[~mask], 0.0)


@pytest.mark.parametrize("cell", [TanhCell, slow(TwoScaleCell)])
@pytest.mark.parametrize("gradient", ["unrolled", gradients.TruncatedGradient(3, 0)])
def test_a_learned_start_learns_and_is_saved(cell, gradient, tmp_path):
    inputs, shapes = INPUTS, keras.Input((4,))
    if cell is TwoScaleCell:
        inputs = {"x": INPUTS, "y": INPUTS}
        shapes = {name: keras.Input((4,), name=name) for name in inputs}
    solver = solvers.FixedPointIteration(max_iter=3, tol=None)
    deq = layers.DEQ(
        cell(3),
        solver,
        gradient,
        initial_state={"class_name": "learned", "initializer": "ones"},
    )
    leaves = keras.tree.flatten(deq(shapes))
    flat = [keras.layers.Flatten()(leaf) for leaf in leaves]
    model = keras.Model(shapes, flat)
    before = [weight.numpy() for weight in deq.trainable_weights]
    names = [weight.path.split("/")[-1] for weight in deq.trainable_weights]
    assert sum(name.startswith("initial_state") for name in names) == len(leaves)
    model.compile(keras.optimizers.SGD(0.1), ["mse"] * len(leaves))
    targets = [np.ones((6, *leaf.shape[1:])) for leaf in flat]
    model.fit(inputs, targets, verbose=0)
    for name, old, weight in zip(names, before, deq.trainable_weights, strict=True):
        assert not name.startswith("initial_state") or np.any(old != weight.numpy())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one, two in zip(model(inputs), loaded(inputs), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_start_survives_a_config():
    start = initial_states.Mixed(["cell", initial_states.Normal(0.3)], [0.5, 0.5])
    deq = layers.DEQ(TanhCell(3), initial_state=start)
    copy = layers.DEQ.from_config(deq.get_config())
    assert repr(copy.initial_state) == repr(start)


class _Reshaped(initial_states.InitialState):
    def __init__(self, change):
        self.change = change

    def __call__(self, state, seed=None, learned=None):
        return self.change(state)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {"state": state},
        lambda state: tf.cast(state, tf.float64),
        lambda state: state[:, :2],
    ],
)
def test_a_start_that_is_no_state_is_refused(change):
    deq = layers.DEQ(TanhCell(3), initial_state=_Reshaped(change))
    with pytest.raises(ValueError, match="The value of _?.*Reshaped.* must have"):
        deq(INPUTS)


def test_a_learned_start_of_a_built_layer_is_refused():
    deq = layers.DEQ(TanhCell(3))
    deq(INPUTS)
    with pytest.raises(ValueError, match="Pass `initial_state` to the constructor"):
        deq.initial_state = "learned"
    deq.initial_state = "normal"


@pytest.mark.filterwarnings("ignore:`FunctionCell.call` does not use:UserWarning")
@pytest.mark.parametrize(
    "initial_state",
    [lambda u: u[:, 0], lambda u: tf.zeros([tf.shape(u)[0], tf.shape(u)[0]])],
    ids=["no features", "as many features as samples"],
)
def test_a_learned_start_needs_a_static_number_of_features(initial_state):
    cell = FunctionCell(lambda z, u: 0.5 * z, initial_state)
    deq = layers.DEQ(cell, initial_state="learned")
    with pytest.raises(ValueError, match="static number of features"):
        deq(keras.Input((4,)))


@pytest.mark.parametrize("identifier", ["somewhere", 3, None])
def test_what_is_no_start_is_refused(identifier):
    with pytest.raises(ValueError, match="initial state"):
        layers.DEQ(TanhCell(3), initial_state=identifier)


@pytest.mark.parametrize("training", [False, True])
def test_a_name_in_place_of_a_state_is_refused(training):
    """It would start from the cell's state, because a call has no seed to draw with."""
    deq = layers.DEQ(TanhCell(3), ONCE)
    with pytest.raises(ValueError, match="initial_state"):
        deq(INPUTS, initial_state="normal", training=training)


@pytest.mark.parametrize("state", ["normal", initial_states.Mixed()])
def test_a_request_for_a_random_state_needs_a_seed(state):
    deq = layers.DEQ(TanhCell(3), ONCE)
    request = solvers.SolveRequest(state)
    with pytest.raises(ValueError, match=r"needs a seed.*Received: seed=None"):
        deq.solve(INPUTS, request)
    with pytest.raises(ValueError, match="A solver needs a state of tensors"):
        deq.solver.solve(deq.problem(INPUTS), request)
    with pytest.raises(ValueError, match="Did you mean 'normal'"):
        deq.solve(INPUTS, solvers.SolveRequest("nromal", seed=1))
