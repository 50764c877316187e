import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.layers import DEQ, SegmentMemory, TrellisCell
from tests import harness
from tests.golden import arrays

VARIANTS = {
    "k2_d1": {"kernel_size": 2},
    "k3_d2_mos": {"kernel_size": 3, "dilation_rate": 2},
}
NUM_POSITIONS = 9


def assign_convolution(layer, bias, gain, direction):
    """Assigns the reference's weights: bias, gains, directions (out, in, taps)."""
    layer.bias.assign(bias)
    layer.gain.assign(np.ravel(gain))
    layer.direction.assign(np.transpose(direction, (2, 1, 0)))


class Golden:
    """One of the reference's runs, as arrays `(batch, length, channels)`."""

    def __init__(self, variant):
        self.variant = variant
        self.arrays = arrays.load("trellis")

    def __getitem__(self, key):
        array = self.arrays[f"{self.variant}/{key}"]
        return array.swapaxes(0, 1) if key[:2] in ("s0", "s1") else array

    def cell(self):
        cell = TrellisCell(11, output_dim=6, dtype="float64", **VARIANTS[self.variant])
        cell.build((None, None, 6))
        for name, layer in [
            ("func.full_conv", cell.convolution),
            ("inject_conv", cell.injection_convolution),
        ]:
            weights = ("bias", "weight_g", "weight_v")
            names = [f"param/trellisnet.{name}.{weight}" for weight in weights]
            assign_convolution(layer, *(self[name] for name in names))
        return cell

    def inputs(self, segment):
        return tf.constant(self["param/encoder.weight"][self[f"{segment}/data"]])

    def memory(self):
        hidden, cell = np.split(self["s0/memory"], 2, axis=-1)
        return {"hidden": tf.constant(hidden), "cell": tf.constant(cell)}


@pytest.fixture(params=VARIANTS)
def golden(request):
    return Golden(request.param)


def _inputs(shape=(4, 6, 5), seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def _solve(cell, inputs):
    solver = solvers.FixedPointIteration(max_iter=40, tol=1e-13)
    deq = DEQ(cell, solver=solver, dtype=cell.dtype_policy)
    return tf.function(deq, autograph=False)(inputs)


@pytest.mark.slow
def test_equilibrium_equals_the_reference(golden):
    cell = golden.cell()
    state = _solve(cell, golden.inputs("s0"))
    expected = golden["s0/features"]
    np.testing.assert_allclose(cell.features(state), expected, atol=1e-10)
    given = {"inputs": golden.inputs("s1"), "memory": golden.memory()}
    state = _solve(cell, given)
    expected = golden["s1/features"]
    np.testing.assert_allclose(cell.features(state), expected, atol=1e-10)
    last = np.concatenate([state["hidden"][:, -1:], state["cell"][:, -1:]], axis=-1)
    np.testing.assert_allclose(last, golden["s1/memory"], atol=1e-10)


@pytest.mark.parametrize(
    "dilation_rate, first, total",
    [
        (
            1,
            [0.38383954, -0.0497566, -0.05571005, 0.17991548, 0.25036945],
            4.3781035546,
        ),
        (
            2,
            [0.38383954, 0.20365712, -0.06275907, 0.10785773, 0.20303809],
            4.7526939056,
        ),
    ],
)
def test_one_evaluation_equals_the_reference(dilation_rate, first, total):
    cell = TrellisCell(7, dilation_rate=dilation_rate, dtype="float64")
    cell.build((None, None, 4))
    assign_convolution(
        cell.convolution,
        arrays.fill((28,), 8, 0.3),
        1 + arrays.fill((28, 1, 1), 9, 0.3),
        arrays.fill((28, 7, 2), 10, 0.3),
    )
    # The reference's arrays are (batch, channels, length).
    state = arrays.fill((2, 14, 5), 100, 0.7).swapaxes(1, 2)
    memory = arrays.fill((2, 14, 1), 102, 0.6).swapaxes(1, 2)
    injection = cell.inject(
        {
            "inputs": tf.zeros((2, 5, 4), tf.float64),
            "memory": {"hidden": memory[..., :7], "cell": memory[..., 7:]},
        }
    )
    injected = arrays.fill((2, 28, 5), 101, 0.5).swapaxes(1, 2)
    injection["inputs"] = injected + cell.convolution.bias
    value = cell({"hidden": state[..., :7], "cell": state[..., 7:]}, injection)
    np.testing.assert_allclose(value["hidden"][0, :, 0], first, atol=1e-8)
    np.testing.assert_allclose(
        sum(tf.reduce_sum(leaf) for leaf in value.values()), total, atol=1e-9
    )


def _num_applications(cell, inputs):
    """Returns after how many plain applications nothing changes any more, or 40."""
    injection = cell.inject(inputs)
    state = cell.initial_state(injection)
    for number in range(40):
        value = cell(state, injection)
        if all(np.array_equal(value[name], state[name]) for name in state):
            return number
        state = value
    return 40


def test_without_a_tap_of_the_present_as_many_applications_as_positions_are_exact():
    # A position then depends on those before it alone, and each application settles
    # one more.
    cell = Golden("k2_d1").cell()
    direction = cell.convolution.direction
    direction.assign(tf.concat([direction[:1], tf.zeros_like(direction[1:])], axis=0))
    inputs = Golden("k2_d1").inputs("s0")
    assert _num_applications(cell, inputs) == NUM_POSITIONS
    assert _num_applications(cell, inputs[:, :4]) == 4


def test_with_a_tap_of_the_present_each_position_is_an_equilibrium_of_its_own():
    golden = Golden("k2_d1")
    cell, inputs = golden.cell(), golden.inputs("s0")[:1]
    assert _num_applications(cell, inputs) > 2 * NUM_POSITIONS
    injection, state = cell.inject(inputs), _solve(cell, inputs)

    def apply(point):  # (1, L, 22)
        hidden, memory = tf.split(point, 2, axis=-1)
        value = cell({"hidden": hidden, "cell": memory}, injection)
        return tf.concat([value["hidden"], value["cell"]], axis=-1)

    point = tf.concat([state["hidden"], state["cell"]], axis=-1)
    with tf.GradientTape() as tape:
        tape.watch(point)
        value = apply(point)
    blocks = tape.jacobian(value, point).numpy()[0, :, :, 0]  # (L, 22, L, 22)
    later = np.triu(np.ones((NUM_POSITIONS, NUM_POSITIONS)), 1)
    np.testing.assert_array_equal(blocks * later[:, None, :, None], 0)
    of_positions = [_radius(blocks[t, :, t]) for t in range(NUM_POSITIONS)]
    whole = _radius(blocks.reshape(NUM_POSITIONS * 22, -1))
    assert 0.01 < max(of_positions) < 1
    # Eigenvalues of so lopsided a matrix are known to few digits.
    np.testing.assert_allclose(whole, max(of_positions), rtol=0.05)


def _radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.slow
def test_a_position_sees_nothing_after_it():
    cell = TrellisCell(8, kernel_size=3, dilation_rate=2, seed=1)
    inputs = _inputs()
    changed = tf.concat([inputs[:, :5], inputs[:, 5:] + 1], axis=1)
    values = [_solve(cell, one)["hidden"] for one in (inputs, changed)]
    np.testing.assert_allclose(values[0][:, :5], values[1][:, :5], atol=1e-6)
    assert np.abs(values[0] - values[1])[:, 5:].max() > 1e-3


def _windows(state, inputs, end, cell):
    """What a cell of three taps at a distance of 2 sees before position `end`."""
    return {
        "hidden": state["hidden"][:, end - 4 : end],
        "cell": state["cell"][:, end - cell.cell_shift : end],
        "inputs": inputs[:, end - 2 : end],
    }


@pytest.mark.slow
@pytest.mark.parametrize("cell_shift", [1, 2])
def test_the_end_of_a_sequence_is_solved_against_what_the_taps_see(cell_shift):
    """What makes generation incremental: the beginning does not depend on the end."""
    cell = TrellisCell(8, kernel_size=3, dilation_rate=2, cell_shift=cell_shift, seed=1)
    inputs = _inputs()
    whole = _solve(cell, inputs)
    given = {"inputs": inputs[:, 5:], "memory": _windows(whole, inputs, 5, cell)}
    end = _solve(cell, given)
    for name in whole:
        np.testing.assert_allclose(end[name], whole[name][:, 5:], atol=1e-6)


def test_an_empty_memory_is_zeros_and_a_short_one_is_continued_by_its_first():
    cell = TrellisCell(3, kernel_size=3, dilation_rate=2)
    inputs = _inputs((2, 6, 5))
    alone = cell.inject(inputs)
    empty = {name: tf.zeros((2, 0, 3)) for name in ("hidden", "cell")}
    injection = cell.inject({"inputs": inputs, "memory": empty})
    for name in alone:
        np.testing.assert_array_equal(injection[name], alone[name])
    memory = {name: _inputs((2, 2, 3), seed=3) for name in ("hidden", "cell")}
    injection = cell.inject({"inputs": inputs, "memory": memory})
    first, second = tf.unstack(memory["hidden"], axis=1)
    expected = tf.stack([first, first, first, second], axis=1)
    np.testing.assert_array_equal(injection["hidden"], expected)
    np.testing.assert_array_equal(injection["cell"], memory["cell"][:, 1:])


def test_masks_are_fixed_in_a_solve_and_new_in_the_next():
    cell = TrellisCell(8, dropout_rate=0.5, weight_dropout_rate=0.5, seed=1)
    inputs = _inputs()
    state = {name: _inputs((4, 6, 8), seed=2) for name in ("hidden", "cell")}
    injections = [cell.inject(inputs, training=True) for _ in range(2)]
    values = [cell(state, injection)["hidden"] for injection in injections]
    np.testing.assert_array_equal(cell(state, injections[0])["hidden"], values[0])
    assert np.any(values[0] != values[1])
    assert injections[0]["mask"].shape == (4, 1, 8)
    assert "mask" not in cell.inject(inputs)


@pytest.mark.parametrize("weight_normalization", [True, False])
def test_weights_of_the_past_are_dropped_and_none_of_the_present(weight_normalization):
    cell = TrellisCell(
        8, weight_dropout_rate=0.5, weight_normalization=weight_normalization, seed=1
    )
    cell.build((None, None, 5))
    kernel = cell.constants(training=True)["kernel"].numpy()
    assert 0.3 < np.mean(kernel[0] == 0) < 0.7
    assert not np.any(kernel[1] == 0)
    if weight_normalization:  # What is left has the same length.
        lengths = np.sqrt(np.sum(kernel**2, axis=(0, 1)))
        np.testing.assert_allclose(lengths, cell.convolution.gain, rtol=1e-5)
    assert not np.any(cell.constants()["kernel"] == 0)


def test_the_injection_holds_all_that_the_state_does_not_enter():
    cell = TrellisCell(8, seed=1)
    injection = cell.inject(_inputs())
    state = cell.initial_state(injection)
    with tf.GradientTape() as tape:
        value = cell(state, injection)
    variables = [variable.value for variable in cell.trainable_variables]
    assert all(gradient is None for gradient in tape.gradient(value, variables))


@pytest.mark.slow
def test_segments_remember_the_last_position():
    golden = Golden("k2_d1")
    solver = solvers.FixedPointIteration(max_iter=200, tol=1e-14)
    deq = DEQ(golden.cell(), solver, dtype="float64")
    layer = SegmentMemory(deq, length=1, dtype="float64")
    solve = tf.function(layer)
    with layer.reading_segments():
        values = [solve(golden.inputs(segment)) for segment in ("s0", "s1")]
    for segment, value in zip(("s0", "s1"), values, strict=True):
        np.testing.assert_allclose(value, golden[f"{segment}/features"], atol=1e-10)
    remembered = tf.concat([layer.memory["hidden"], layer.memory["cell"]], axis=-1)
    np.testing.assert_allclose(remembered, golden["s1/memory"], atol=1e-10)
    with (
        layer.reading_segments(),
        pytest.raises(tf.errors.InvalidArgumentError, match="batch size differs"),
    ):
        solve(golden.inputs("s0")[:2])


def _layer(dtype=None, **arguments):
    cell = TrellisCell(8, output_dim=6, seed=1, dtype=dtype, **arguments)
    solver = solvers.FixedPointIteration(max_iter=4, tol=None)
    return SegmentMemory(DEQ(cell, solver, dtype=dtype), length=0, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [{}, {"kernel_size": 3, "dilation_rate": 2}, {"weight_normalization": False}],
)
def test_is_a_keras_layer(arguments, tmp_path):
    harness.check_layer(
        lambda dtype=None: _layer(dtype, **arguments),
        _inputs((6, 5, 8)).numpy(),
        tmp_path,
    )


@pytest.mark.parametrize(
    "arguments, length", [({"kernel_size": 4}, 3), ({"dilation_rate": 6}, 6)]
)
def test_sequences_shorter_than_the_reach_of_the_taps_are_refused(arguments, length):
    cell = TrellisCell(8, **arguments)
    with pytest.raises(ValueError, match="Use longer sequences.*Received: inputs"):
        cell.inject(_inputs((4, length, 5)))
    cell.inject(_inputs((4, length + 1, 5)))


def test_a_memory_of_another_batch_is_refused():
    memory = {name: _inputs((3, 1, 8)) for name in ("hidden", "cell")}
    with pytest.raises(ValueError, match="of the 4 samples.*of shape"):
        TrellisCell(8).inject({"inputs": _inputs(), "memory": memory})


def test_a_state_of_another_batch_is_refused():
    deq = DEQ(TrellisCell(8))
    state = {name: _inputs((3, 6, 8)) for name in ("hidden", "cell")}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        deq(_inputs(), initial_state=state)


def test_inputs_of_another_rank_are_refused():
    with pytest.raises(ValueError, match=r"\(batch, length, features\)"):
        TrellisCell(8).inject(tf.ones((2, 3)))
