"""Training that continues from the states of the last update."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, models, solvers
from tests.layers.cells import FunctionCell, TanhCell
from tests.regimes import slow
from training.runs import checkpoint

COUNTING = solvers.FixedPointIteration(max_iter=2, tol=None)


def _counting_layer(solver=COUNTING):
    """f(z, u) = z + 1: a state tells how many evaluations it has seen."""
    cell = FunctionCell(lambda z, u: z + 1.0 + 0.0 * u, tf.zeros_like)
    return layers.DEQ(cell, solver, "unrolled", regularizer=None, name="deq")


def _counting(batch_size=6, run_eagerly=True, **arguments):
    """Samples are their own numbers, and outputs are states."""
    inputs = keras.Input((1,))
    scale = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Model(inputs, scale(_counting_layer()(inputs)))
    specs = (tf.TensorSpec((None, 1)), tf.TensorSpec((None, 1)))
    carried = models.ContinuousBatchingModel(model, specs, batch_size, **arguments)
    carried.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=run_eagerly)
    return carried


@pytest.fixture(scope="module")
def shared():
    return _counting()


@pytest.fixture
def carried(shared):
    """Which has seen no sample yet, and whose rule may be set."""
    shared.reset_carry()
    shared.finished, shared.max_segments, shared.inherited = "converged", 16, 0.0
    return shared


def _feed(carried, numbers):
    x = np.array(numbers, "float32")[:, None]
    return carried.train_on_batch(x, x, return_dict=True)


def _held(carried):
    """Returns number, state and segments of every place."""
    x, y = (weight.numpy()[:, 0] for weight in carried.carry.weights[:2])
    np.testing.assert_array_equal(x, y)
    state = carried.carry.weights[2].numpy()[:, 0]
    segments = carried.carry.num_segments.numpy()
    return [x.tolist(), state.tolist(), segments.tolist()]


def test_oldest_samples_leave(carried):
    _feed(carried, [1, 2])
    assert _held(carried) == [[1, 2, 1, 2, 1, 2], [2] * 6, [1] * 6]
    _feed(carried, [3, 4])
    assert _held(carried) == [[3, 4, 1, 2, 1, 2], [2, 2, 4, 4, 4, 4], [1, 1] + [2] * 4]
    _feed(carried, [5, 6])
    assert _held(carried)[0] == [3, 4, 5, 6, 1, 2]
    logs = _feed(carried, [7])  # The rest of an epoch.
    assert _held(carried) == [
        [3, 4, 5, 6, 7, 2],
        [6, 6, 4, 4, 2, 8],
        [3, 3, 2, 2, 1, 4],
    ]
    assert logs["segments"] == 3.0
    assert logs["finished"] == 0.0
    assert logs["deq_evaluations"] == 2.0
    carried.reset_carry()
    _feed(carried, [8, 9])
    assert _held(carried)[1:] == [[2] * 6, [1] * 6]


def test_fresh_samples_inherit_states(carried):
    carried.inherited = 1.0
    _feed(carried, [1, 2])  # The batch before it is empty.
    assert _held(carried) == [[1, 2, 1, 2, 1, 2], [2] * 6, [1] * 6]
    _feed(carried, [3, 4])
    assert _held(carried) == [[3, 4, 1, 2, 1, 2], [4] * 6, [1, 1] + [2] * 4]
    carried.inherited = 0.5
    begun = []
    for number in range(5, 30):
        before = _held(carried)
        _feed(carried, [number])
        place = _held(carried)[0].index(number)
        state = _held(carried)[1][place]
        assert state in (2.0, before[1][place] + 2)
        begun.append(state == 2.0)
    assert 0.2 < np.mean(begun) < 0.8


def test_finished_samples_leave_first(carried):
    def is_odd(segment):
        assert segment.outputs.shape == segment.examples[1].shape == (6, 1)
        assert segment.solution.residual.shape == (6,)
        return segment.examples[0][:, 0] % 2 == 1

    carried.finished = is_odd
    for numbers in ([1, 2], [3, 4], [5, 6]):
        logs = _feed(carried, numbers)
    # [1, 2, 1, 2, 1, 2], [3, 2, 4, 2, 1, 2], and the odd, of which 1 is older.
    assert _held(carried)[0] == [6, 2, 4, 2, 5, 2]
    assert logs["finished"] == 1.0


def test_limit_of_segments(carried):
    carried.finished = lambda segment: segment.examples[0][:, 0] > 8
    carried.max_segments = 3
    for numbers in ([1, 2], [3, 4], [9, 10], [11, 12]):
        _feed(carried, numbers)
    # 1 and 2 had three segments, 9 and 10 one.
    assert _held(carried)[0] == [3, 4, 9, 10, 11, 12]
    for numbers in ([5, 6], [7, 8]):
        _feed(carried, numbers)
    assert _held(carried)[0] == [5, 6, 7, 8, 11, 12]


def test_each_segment_is_an_update():
    """By hand: the gradient of the steps of a segment, and a constant before."""
    keras.utils.set_random_seed(1)
    deq = layers.DEQ(
        TanhCell(4, 0.9), COUNTING, "unrolled", None, name="deq", max_iter_jitter=0
    )
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    x = np.random.RandomState(0).normal(size=(6, 3)).astype("float32")
    y = x[:, :1]
    weights = model.get_weights()
    carried = models.ContinuousBatchingModel(model, (x, y), batch_size=3)
    carried.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    carried.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    trained = model.get_weights()
    assert carried.optimizer.iterations == 3

    model.set_weights(weights)
    held, state = None, None
    for numbers in ([0, 1, 0], [2, 3, 0], [5, 3, 4]):
        start = np.zeros((3, 4), "float32")
        if held is not None:
            stays = np.equal(held, numbers)
            start[stays] = state.numpy()[stays]
        with tf.GradientTape() as tape:
            state = deq(x[numbers], initial_state=start, training=True)
            loss = tf.reduce_mean((model.layers[-1](state) - y[numbers]) ** 2)
        gradient = tape.gradient(loss, model.trainable_variables)
        for variable, by in zip(model.trainable_variables, gradient, strict=True):
            variable.assign_sub(0.1 * by)
        held = numbers
    for one, two in zip(trained, model.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def _reasoner(gradient="unrolled", dtype=None):
    keras.utils.set_random_seed(3)
    deq = layers.DEQ(
        TanhCell(4, 0.9, dtype=dtype),
        solvers.FixedPointIteration(max_iter=3, tol=0.05),
        gradient,
        regularizer=None,
        initial_state="mixed",
        seed=1,
        dtype=dtype,
        name="deq",
    )
    head = keras.layers.Dense(2, dtype="float32")
    model = keras.Sequential([keras.Input((3,)), deq, head])
    specs = (tf.TensorSpec((None, 3)), tf.TensorSpec((None,), tf.int32))
    return models.ContinuousBatchingModel(model, specs, batch_size=8, name="carried")


DATA = tf.data.Dataset.from_tensor_slices(
    (
        np.random.RandomState(0).normal(size=(16, 3)).astype("float32"),
        np.arange(16, dtype="int32") % 2,
    )
).batch(2)


def _compiled(model, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], **arguments)
    return model


# The gradient with which reasoners are trained.
FREE_STEPS = gradients.TruncatedGradient("uniform", "uniform", free_fraction=1.0)


@pytest.mark.parametrize(
    ("gradient", "run_eagerly"), [("unrolled", True), slow(FREE_STEPS, False)]
)
def test_resumed_training_is_equal(gradient, run_eagerly, tmp_path):
    model = _compiled(_reasoner(gradient), run_eagerly=run_eagerly)
    keras.utils.clear_session(free_memory=False)  # A resumed run has the same names.
    resumed = _compiled(_reasoner(gradient), run_eagerly=run_eagerly)
    first, second = DATA.take(2), DATA.skip(2).take(2)
    model.inherited = resumed.inherited = 0.5
    model.fit(first, shuffle=False, verbose=0)
    checkpoint.save(tmp_path, model, history=[{"epoch": 1}])
    model.fit(second, shuffle=False, verbose=0)
    checkpoint.restore(tmp_path, resumed, resumed.optimizer)
    resumed.fit(second, shuffle=False, verbose=0)
    assert resumed.optimizer.iterations == 4
    np.testing.assert_equal(model.get_weights(), resumed.get_weights())


@pytest.mark.slow
def test_model_is_restored(tmp_path):
    model = _compiled(_reasoner())
    model.fit(DATA.take(3), shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_equal(model.get_weights(), loaded.get_weights())
    loaded.fit(DATA.skip(3), shuffle=False, verbose=0)
    assert loaded.optimizer.iterations == 8


def test_logs_of_an_evaluation():
    carried = _counting(run_eagerly=False)
    x = np.ones((4, 1), "float32")
    history = carried.fit(x, x, 2, validation_data=(x, x), verbose=0).history
    assert {"segments", "finished", "deq_evaluations", "val_loss"} <= set(history)
    assert not {"val_segments", "val_finished"} & set(history)
    assert carried.optimizer.iterations == 2


@pytest.mark.slow
def test_validation_solves_from_the_start():
    model = _compiled(_reasoner(FREE_STEPS))
    history = model.fit(
        DATA, epochs=2, shuffle=False, validation_data=DATA.take(2), verbose=0
    ).history
    assert np.isfinite([history[name] for name in history]).all()
    # 8 problems are in progress, and 2 are new in each step.
    assert 1.0 < history["segments"][1] < 8.0
    carried = model.carry.get_weights()
    expected = _compiled(model.model).evaluate(DATA, verbose=0, return_dict=True)
    found = model.evaluate(DATA, verbose=0, return_dict=True)
    assert found == pytest.approx(expected)
    np.testing.assert_allclose(
        model.predict(DATA, verbose=0), model.model.predict(DATA, verbose=0), atol=1e-6
    )
    np.testing.assert_equal(model.carry.get_weights(), carried)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, jit_compile", [("mixed_bfloat16", True), ("mixed_float16", False)]
)
def test_precisions_and_xla(dtype, jit_compile, tmp_path):
    model = _compiled(_reasoner(FREE_STEPS, dtype), jit_compile=jit_compile)
    history = model.fit(DATA, epochs=3, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    state = model.carry.weights[2]
    assert state.dtype == "float32" and np.any(state.numpy() != 0.0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = _reasoner(FREE_STEPS, dtype)
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(state, other.carry.weights[2])


def test_file_holds_the_random_state(shared, tmp_path):
    shared.seed_generator.state.assign([5, 6])
    shared.save_weights(tmp_path / "model.weights.h5")
    restored = _counting()
    restored.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(restored.seed_generator.state, [5, 6])


def test_file_of_another_batch_size_raises(shared, tmp_path):
    path = tmp_path / "model.weights.h5"
    shared.save_weights(path)
    with pytest.raises(ValueError, match="`batch_size`"):
        _counting(4).load_weights(path)


def test_other_batches_raise(carried):
    for shape, dtype in (((6, 1), "float32"), ((2, 2), "float32"), ((2, 1), "int32")):
        data = np.zeros(shape, dtype)
        with pytest.raises(ValueError, match="Received"):
            carried.train_on_batch(data, data)
    x = np.zeros((2, 1), "float32")
    with pytest.raises(ValueError, match="`examples`"):
        carried.train_on_batch(x, x, sample_weight=x[:, 0])


def test_examples_that_are_no_arrays_raise(shared):
    examples = [["a", "b"], np.zeros((2, 1))]
    with pytest.raises(ValueError, match="`examples` .*Received: an element 'a'"):
        models.ContinuousBatchingModel(shared.model, examples, 6)


def test_several_replicas_raise(monkeypatch):
    class Strategy:
        num_replicas_in_sync = 2
        scope = staticmethod(contextlib.nullcontext)

    monkeypatch.setattr(tf.distribute, "get_strategy", Strategy)
    with pytest.raises(ValueError, match="replicas"):
        _counting()


def test_models_without_one_layer_raise():
    inputs = keras.Input((1,))
    none = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    deq = _counting_layer()
    twice = keras.Model(inputs, deq(deq(inputs)))
    specs = (tf.TensorSpec((None, 1)),) * 2
    unbuilt = keras.Sequential([deq])
    for model in (none, twice, unbuilt):
        with pytest.raises(ValueError):
            models.ContinuousBatchingModel(model, specs, 4)


def test_other_results_of_finished_raise(carried):
    carried.finished = lambda segment: segment.num_segments
    with pytest.raises(ValueError, match="Received.*int32"):
        _feed(carried, [1, 2])
    carried.finished = lambda segment: segment.num_segments[:2] > 1
    with pytest.raises(ValueError, match="Received"):
        _feed(carried, [1, 2])


def test_an_equilibrium_layer_that_is_not_called():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.called = layers.DEQ(TanhCell(1), COUNTING, "unrolled", None)
            self.other = layers.DEQ(TanhCell(1), COUNTING, "unrolled", None)
            self.other.trainable = False

        def build(self, input_shape):
            self.called.build(input_shape)
            self.other.build(input_shape)

        def call(self, inputs, training=None):
            return self.called(inputs, training=training)

    model, ones = Model(), np.ones((4, 1), "float32")
    model(ones)
    carried = models.ContinuousBatchingModel(model, (ones, ones), 4)
    carried.compile("sgd", "mse", run_eagerly=True)
    assert np.isfinite(carried.fit(ones, ones, 2, verbose=0).history["loss"][0])


def test_samples_continue_where_a_model_gives_the_first_state():
    """f(z, u) = z + 1 counts from the number of the sample."""
    inputs = keras.Input((1,))
    outputs = _counting_layer()(inputs, initial_state=inputs)
    model = keras.Model(inputs, outputs)
    ones = np.ones((2, 1), "float32")
    carried = models.ContinuousBatchingModel(model, (ones, ones), 4, finished=None)
    carried.compile(keras.optimizers.SGD(0.0), "mae", run_eagerly=True)
    with pytest.warns(UserWarning, match="trainable weights"):
        losses = [carried.train_on_batch(ones, 0.0 * ones) for _ in range(2)]
    del losses
    (state,) = carried.carry._state
    assert set(np.unique(state)) <= {3.0, 5.0} and 5.0 in state
