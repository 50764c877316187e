import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import regularizers
from deq_keras.layers import DEQ, MultiscaleCell, MultiscaleFusion
from deq_keras.solvers import FixedPointIteration
from tests import harness
from tests.layers.formulas import convolve, kernel_of, normalize, randomize, relu


def _inputs(shape=(2, 8, 8, 8), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _cell(filters=(8, 16), dtype="float64", **kwargs):
    return MultiscaleCell(filters, **{"expansion": 2, "seed": 1, **kwargs}, dtype=dtype)


def _state(cell, size=8, seed=2):
    return [
        tf.constant(_inputs((2, size // 2**scale, size // 2**scale, filters), seed))
        for scale, filters in enumerate(cell.filters)
    ]


def _block(block, state, injection, mask):
    hidden = relu(normalize(block.norm1, convolve(state, kernel_of(block.conv1))))
    hidden = convolve(hidden, kernel_of(block.conv2)) * mask + injection
    return normalize(block.norm3, relu(state + normalize(block.norm2, hidden)))


def _fuse(fusion, maps):
    fused = []
    for target, total in enumerate(maps):
        for source, value in enumerate(maps):
            path = fusion.paths.get(f"{source}_to_{target}", ())
            for stage, (convolution, norm) in enumerate(path):
                strides = 2 if source < target else 1
                value = relu(value) if stage else value
                value = convolve(value, kernel_of(convolution), strides)
                value = normalize(norm, value)
            times = 2 ** max(source - target, 0)
            if source != target:
                total = total + value.repeat(times, axis=1).repeat(times, axis=2)
        total = convolve(relu(total), kernel_of(fusion.convolutions[target]))
        fused.append(normalize(fusion.norms[target], total))
    return fused


def _formula(cell, state, inputs, injection):
    maps = []
    for scale, branch in enumerate(cell.branches):
        value = state[scale].numpy()
        for index, block in enumerate(branch):
            mask = injection["blocks"][scale][index].get("mask", np.ones(()))
            injected = inputs if scale == index == 0 else 0.0
            value = _block(block, value, injected, np.asarray(mask))
        maps.append(value)
    return _fuse(cell.fusion, maps)


@pytest.mark.parametrize(
    "filters, arguments",
    [
        ((8, 16), {}),
        ((8, 16, 24), {"num_blocks": [1, 2, 1], "kernel_size": [(5, 3), 3, (5, 5)]}),
        ((8, 8), {"weight_normalization": False, "dropout_rate": 0.5}),
        ((8, 8), {"block_affine": False, "fuse_affine": False, "post_affine": False}),
        ((8,), {"num_blocks": 2}),
        ((4, 4, 8, 8, 8), {"expansion": 1}),
    ],
)
def test_formula(filters, arguments):
    cell = _cell(filters, **arguments)
    size = max(8, 2 ** (len(filters) - 1))
    inputs = _inputs((2, size, size, filters[0]))
    cell.build(inputs.shape)
    randomize(cell, shift=0.3)
    injection = cell.inject(inputs, training=True)
    state = _state(cell, size)
    values = cell(state, injection)
    expected = _formula(cell, state, inputs, injection)
    for value, array in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, array, atol=1e-10)


def test_inputs_of_other_channels_are_projected():
    cell = _cell()
    inputs = _inputs((2, 8, 8, 3))
    injection = cell.inject(inputs)
    kernel = cell.branches[0][0].projection.kernel.numpy()[0, 0]
    np.testing.assert_allclose(
        injection["blocks"][0][0]["inputs"], inputs @ kernel, atol=1e-12
    )


def test_only_the_finest_scale_has_an_injection():
    injection = _cell((8, 16, 16), num_blocks=2).inject(_inputs())
    has_inputs = [["inputs" in c for c in scale] for scale in injection["blocks"]]
    assert has_inputs == [[True, False], [False, False], [False, False]]
    assert len(injection["fusion"]) == 3


def test_last_norms_have_half_as_many_groups():
    fusion = MultiscaleFusion((8, 16), groups=8)
    assert [norm.groups for norm in fusion.norms] == [4, 4]
    ((_, norm),) = fusion.paths["0_to_1"]
    assert norm.groups == 8


def test_fusion_alone_computes_its_kernels():
    cell = _cell()
    injection, maps = cell.inject(_inputs()), _state(cell)
    expected = cell.fusion(maps, kernels=injection["fusion"])
    for value, array in zip(cell.fusion(maps), expected, strict=True):
        np.testing.assert_array_equal(value, array)


def test_initial_state():
    cell = _cell((8, 16, 24))
    state = cell.initial_state(cell.inject(_inputs((3, 8, 4, 8))))
    assert [tuple(s.shape) for s in state] == [
        (3, 8, 4, 8),
        (3, 4, 2, 16),
        (3, 2, 1, 24),
    ]
    assert all(s.dtype == "float64" and not np.any(s) for s in state)


def test_masks_are_fixed_in_a_solve_and_new_in_the_next():
    cell = _cell(dropout_rate=0.5)
    inputs, state = _inputs(), _state(cell)
    injections = [cell.inject(inputs, training=True) for _ in range(2)]
    masks = [[s[0]["mask"].numpy() for s in i["blocks"]] for i in injections]
    assert [m.shape for m in masks[0]] == [(2, 1, 1, 8), (2, 1, 1, 16)]
    assert any(np.any(one != two) for one, two in zip(*masks, strict=True))
    values = [cell(state, injection) for injection in injections]
    for value, again in zip(values[0], cell(state, injections[0]), strict=True):
        np.testing.assert_array_equal(value, again)
    assert np.any(values[0][0] != values[1][0])
    assert "mask" not in cell.inject(inputs)["blocks"][0][0]


def test_call_is_pure():
    """No random number, no variable update, no weight normalization in `call`."""
    cell = _cell(dropout_rate=0.5)
    injection = cell.inject(_inputs(), training=True)
    state = cell.initial_state(injection)
    function = tf.function(cell).get_concrete_function(state, injection)
    types = {node.op for node in function.graph.as_graph_def().node}
    assert not [name for name in types if "Random" in name or "Assign" in name]
    captured = {id(tensor) for tensor, _ in function.graph.captures}
    fixed = [w for w in cell.weights if w.name in ("direction", "gain")]
    assert not captured & {id(w.value.handle) for w in fixed}


def test_seed_makes_blocks_that_differ():
    def kernels(seed):
        cell = _cell((8, 8), seed=seed, dtype="float32")
        cell.build((None, 8, 8, 8))
        return [b[0].conv1.normalized_kernel().numpy() for b in cell.branches]

    one, again, other = kernels(1), kernels(1), kernels(2)
    np.testing.assert_array_equal(one, again)
    assert np.any(one[0] != one[1])
    assert np.any(one[0] != other[0])


def test_second_order_gradients_are_finite():
    """What a Jacobian regularizer needs, from the start that a solve has: zeros."""
    cell = _cell(dropout_rate=0.2)
    inputs = tf.constant(_inputs())
    cell.inject(inputs)
    weights = [w.value for w in cell.trainable_weights]
    with tf.GradientTape() as outer:
        injection = cell.inject(inputs, training=True)
        state = cell.initial_state(injection)
        with tf.GradientTape() as inner:
            inner.watch(state)
            values = cell(state, injection)
        probes = [_inputs(value.shape, seed=3) for value in values]
        products = inner.gradient(values, state, probes)
        loss = sum(tf.reduce_sum(product**2) for product in products)
    assert loss > 0
    gradients = [g for g in outer.gradient(loss, weights) if g is not None]
    assert len(gradients) > len(weights) / 2
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_gradients_reach_every_weight():
    cell = _cell((8, 16), num_blocks=[1, 2])
    inputs = _inputs()
    cell.build(inputs.shape)
    with tf.GradientTape() as tape:
        injection = cell.inject(inputs)
        values = cell(_state(cell), injection)
        loss = sum(tf.reduce_sum(value**3) for value in values)
    gradients = tape.gradient(loss, [w.value for w in cell.trainable_weights])
    for weight, gradient in zip(cell.trainable_weights, gradients, strict=True):
        assert gradient is not None, weight.path
        assert np.abs(gradient).max() > 0, weight.path


def _deq(dtype=None):
    return DEQ(
        _cell((8, 8), dtype, dropout_rate=0.1),
        # Far from an equilibrium, regimes agree for a few evaluations only.
        FixedPointIteration(max_iter=3, tol=None),
        regularizer=regularizers.JacobianRegularizer(0.1),
        dtype=dtype,
    )


FOUR = _inputs((4, 4, 4, 3)).astype("float32")


@pytest.mark.slow
def test_regimes():
    harness.check_symbolic_call(_deq, FOUR)
    harness.check_regimes(_deq, FOUR, 1e-4)


@pytest.mark.slow
def test_is_a_keras_layer(tmp_path):
    harness.check_batches(_deq, FOUR)
    harness.check_fit(_deq, FOUR)
    harness.check_fit(lambda: _deq("mixed_bfloat16"), FOUR)
    harness.check_save(_deq, FOUR, tmp_path)


def test_bfloat16():
    cell, exact = _cell(dtype="mixed_bfloat16"), _cell(dtype="float32")
    for one in (cell, exact):
        one.build((2, 8, 8, 8))
    cell.set_weights(exact.get_weights())
    values = []
    for one in (cell, exact):
        injection = one.inject(_inputs().astype("float32"))
        state = [tf.cast(s, one.compute_dtype) for s in _state(one)]
        value = one(state, injection)
        assert {v.dtype.name for v in value} == {one.compute_dtype}
        values.append([tf.cast(v, "float32") for v in value])
    for one, other in zip(*values, strict=True):
        np.testing.assert_allclose(one, other, atol=0.15)
    assert {weight.dtype for weight in cell.trainable_weights} == {"float32"}


@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (2, 8, 10, 8), (2, 8, 8)])
def test_bad_inputs(shape):
    message = r"3 scales expects inputs of shape \(batch, height.*divisible by 4"
    with pytest.raises(ValueError, match=message):
        _cell((8, 8, 8)).inject(_inputs(shape))
    with pytest.raises(ValueError, match=message):
        DEQ(_cell((8, 8, 8)), dtype="float64")(keras.Input(shape[1:]))
