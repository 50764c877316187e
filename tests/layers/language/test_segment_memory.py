"""Segments with a memory compute what one call on the whole text computes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.layers import DEQ, SegmentMemory, TransformerCell
from tests import harness
from tests.layers.language.test_transformer_cell import Golden
from tests.regimes import slow


def _inputs(shape=(2, 6, 8), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _memory(length=4, max_iter=8, solver=None, dtype="float64"):
    cell = TransformerCell(
        8, 2, 16, injection_initializer="glorot_uniform", seed=1, dtype=dtype
    )
    # Graphs of plain iterations are traced faster than graphs of other solvers.
    solver = solver or solvers.FixedPointIteration(max_iter)
    return SegmentMemory(DEQ(cell, solver, dtype=dtype), length, dtype=dtype)


@pytest.mark.parametrize("variant", [slow("a1_pre1_wn1"), "a4_pre0_wn1"])
def test_two_segments_equal_the_reference(variant):
    golden = Golden(variant)
    solver = solvers.Broyden(max_iter=80, tol=1e-10, history=80)
    deq = DEQ(golden.cell(), solver, dtype="float64")
    layer = SegmentMemory(deq, 8, dtype="float64")
    with layer.reading_segments():
        layer(tf.constant(golden["s0/word_emb"]))
    np.testing.assert_allclose(layer.memory["states"], golden["s1/mem_z"], atol=1e-8)
    np.testing.assert_allclose(
        layer.memory["injections"], golden["s1/mem_u"], atol=1e-12
    )
    with layer.reading_segments():
        value = layer(tf.constant(golden["s1/word_emb"]))
    np.testing.assert_allclose(value, golden["s1/fz_star"], atol=1e-8)


def test_segments_with_all_of_the_past_equal_the_whole():
    layer = _memory(length=4, solver=solvers.FixedPointIteration(100, tol=1e-7))
    inputs = tf.constant(_inputs((1, 6, 8)))
    whole = layer.deq(inputs)
    with layer.reading_segments():
        parts = [layer(inputs[:, start : start + 2]) for start in (0, 2, 4)]
    np.testing.assert_allclose(tf.concat(parts, axis=1), whole, atol=1e-5)


@pytest.mark.parametrize("length, expected", [(0, [0, 0]), (4, [3, 4]), (9, [3, 6])])
def test_length_of_the_memory(length, expected):
    layer = _memory(length, max_iter=2)
    lengths = []
    with layer.reading_segments():
        for seed in range(2):
            layer(_inputs((2, 3, 8), seed))
            lengths.append(layer.memory_length)
    assert lengths == expected
    layer.length = 5
    with layer.reading_segments():
        layer(_inputs((2, 5, 8)))
    assert layer.memory_length == 5
    layer.reset_memory()
    assert layer.memory_length == 0


def test_other_calls_stand_alone():
    """They ignore the memory of training and of segments."""
    layer = _memory(max_iter=2)
    signature = [tf.TensorSpec((None, 6, 8), tf.float64)]
    call = tf.function(layer, input_signature=signature, autograph=False)
    expected = call(_inputs())
    assert layer.memory_length == 0
    layer(_inputs(seed=1), training=True)
    with layer.reading_segments():
        layer(_inputs(seed=2))
    before = layer.memory["states"]
    np.testing.assert_array_equal(call(_inputs()), expected)
    np.testing.assert_allclose(call(_inputs()[:1]), expected[:1], rtol=1e-12)
    np.testing.assert_array_equal(layer.memory["states"], before)


def test_another_batch_size_needs_a_reset():
    layer = _memory(max_iter=2)
    with layer.reading_segments():
        layer(_inputs())
        for call in (layer, tf.function(layer, autograph=False)):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match="`reset_memory\\(\\)`"
            ):
                call(_inputs((3, 6, 8)))
        layer.reset_memory()
        assert layer(_inputs((3, 6, 8))).shape == (3, 6, 8)


def test_no_gradient_flows_into_the_memory():
    layer = _memory(max_iter=4)
    first, second = tf.constant(_inputs()), tf.constant(_inputs(seed=1))
    with tf.GradientTape() as tape:
        tape.watch([first, second])
        layer(first, training=True)
        value = layer(second, training=True)
    gradients = tape.gradient(value, [first, second])
    assert gradients[0] is None
    assert np.any(gradients[1])


def test_config_and_files(tmp_path):
    harness.check_round_trip(_memory())
    layer = _memory(dtype="float32")
    inputs = _inputs().astype("float32")
    model = harness.functional_model(layer, inputs)
    with layer.reading_segments():
        expected = [model(inputs), model(inputs)]
    assert np.any(expected[0] != expected[1])
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    with restored.layers[-1].reading_segments():
        for value in expected:
            harness.assert_close(restored(inputs), value, 1e-5)
