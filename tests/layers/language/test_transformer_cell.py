"""`TransformerCell` computes the reference's step, memory and Jacobian products."""

import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras import solvers
from deq_keras.layers import DEQ, TransformerCell
from tests import harness
from tests.golden import arrays

REFERENCE_LAYERS = {
    "injection_projection": "inject_conv",
    "attention.query_key_value": "func.dec_attn.qkv_net",
    "attention.position_projection": "func.dec_attn.r_net",
    "attention.output_projection": "func.dec_attn.o_net",
    "expansion": "func.pos_ff.ff1_net",
    "contraction": "func.pos_ff.ff2_net",
}
VARIANTS = {
    "a1_pre1_wn1": {"normalize_first": True},
    "a4_pre0_wn1": {},
    "plain": {"weight_normalization": False},
}


class Golden:
    """One of the reference's runs, as arrays `(batch, length, units)`."""

    def __init__(self, variant):
        self.variant = variant
        self.arrays = arrays.load("transformer")

    def __getitem__(self, key):
        array = self.arrays[f"{self.variant}/{key}"].astype("float64")
        is_memory = key.endswith(("mem_z", "mem_u"))
        is_map = array.ndim == 3 and not key.endswith("word_emb")
        if is_memory:
            return array.transpose(1, 0, 2)
        return array.transpose(0, 2, 1) if is_map else array

    def parameter(self, name):
        array = self.arrays[f"{self.variant}/{name}"].astype("float64")
        return array.reshape(array.shape[:2]).T if array.ndim > 1 else array

    def cell(self):
        cell = TransformerCell(32, 4, 64, dtype="float64", **VARIANTS[self.variant])
        cell.build((None, None, 32))
        for path, name in REFERENCE_LAYERS.items():
            for suffix, variable in reference_variables(cell, path).items():
                value = self.parameter(f"param/{name}.{suffix}")
                variable.assign(value.reshape(variable.shape))
        for name, variable in reference_biases(cell).items():
            variable.assign(self.parameter(f"param/{name}").T)
        return cell

    def inputs(self, segment):
        inputs = tf.constant(self[f"{segment}/word_emb"])
        if segment == "s0":
            return inputs
        memory = {"states": self["s1/mem_z"], "injections": self["s1/mem_u"]}
        return {"inputs": inputs, "memory": _tensors(memory)}


def _tensors(nest):
    return tree.map_structure(tf.constant, nest)


def reference_variables(cell, path):
    layer = cell
    for name in path.split("."):
        layer = getattr(layer, name)
    variables = {"weight": layer._kernel}
    if hasattr(layer, "gain"):
        variables = {"weight_v": layer.direction, "weight_g": layer.gain}
    return {**variables, "bias": layer.bias} if layer.use_bias else variables


def reference_biases(cell):
    return {
        "func.dec_attn.r_w_bias": cell.attention.content_bias,
        "func.dec_attn.r_r_bias": cell.attention.position_bias,
    }


@pytest.fixture(params=VARIANTS)
def golden(request):
    return Golden(request.param)


@pytest.mark.parametrize("segment", ["s0", "s1"])
def test_one_evaluation_equals_the_reference(golden, segment):
    cell = golden.cell()
    value = cell(golden[f"{segment}/zr"], cell.inject(golden.inputs(segment)))
    np.testing.assert_allclose(value, golden[f"{segment}/fzr"], atol=1e-12)


def test_product_with_the_jacobian_equals_the_reference(golden):
    cell = golden.cell()
    injection = cell.inject(golden.inputs("s1"))
    state = tf.constant(golden["s1/zr"])
    cotangent = tf.constant(golden["s1/ct"])
    product = harness.gradients(lambda: cell(state, injection), state, cotangent)
    np.testing.assert_allclose(product, golden["s1/vjp"], atol=1e-12)


def test_gradients_of_the_jacobian_loss_equal_the_reference(golden):
    cell = golden.cell()
    inputs = golden.inputs("s1")
    state, probe = tf.constant(golden["s1/z_star"]), tf.constant(golden["s1/jac_v"])
    with tf.GradientTape() as outer:
        injection = cell.inject(inputs)
        with tf.GradientTape() as inner:
            inner.watch(state)
            value = cell(state, injection)
        product = inner.gradient(value, state, probe)
        loss = tf.reduce_mean(product**2)
    np.testing.assert_allclose(loss, golden.arrays[f"{golden.variant}/s1/jac_loss"])
    variables = layer_variables(cell)
    found = outer.gradient(loss, variables)
    for name, variable in variables.items():
        expected = golden.parameter(f"s1/gradjac/{name}").reshape(variable.shape)
        if found[name] is None:
            assert not expected.any()
        else:
            np.testing.assert_allclose(found[name], expected, atol=1e-12)


def layer_variables(cell):
    """All variables except the injection's, by the reference's names."""
    variables = {
        f"{name}.{suffix}": variable
        for path, name in REFERENCE_LAYERS.items()
        for suffix, variable in reference_variables(cell, path).items()
    }
    variables = {k: v for k, v in variables.items() if not k.startswith("inject")}
    return {k: v.value for k, v in variables.items()}


def _inputs(shape=(4, 6, 8), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _cell(dtype="float64", **kwargs):
    arguments = {"units": 8, "num_heads": 2, "intermediate_dim": 16, "seed": 1}
    return TransformerCell(**{**arguments, **kwargs}, dtype=dtype)


def _memory(length=5, mask=None, seed=3):
    memory = {
        "states": _inputs((4, length, 8), seed),
        "injections": _inputs((4, length, 24), seed + 1),
    }
    return memory if mask is None else {**memory, "mask": np.array(mask)}


def test_local_size_limits_the_distance():
    """A position sees itself and three positions before it, also of a memory."""
    cell = _cell(local_size=4)
    memory, state = _memory(3), _inputs(seed=2)
    injection = cell.inject(_tensors({"inputs": _inputs(), "memory": memory}))
    memory["states"] = memory["states"].copy()
    memory["states"][:, 1] += 1.0
    changed = cell.inject(_tensors({"inputs": _inputs(), "memory": memory}))
    difference = np.abs(cell(state, injection) - cell(state, changed)).max(axis=(0, 2))
    np.testing.assert_array_equal(
        difference > 0, [True, True, False, False, False, False]
    )


def test_position_sees_nothing_after_it():
    # With a tolerance, a solve would end where the whole sample has converged.
    deq = DEQ(_cell(), solvers.FixedPointIteration(4, tol=None), dtype="float64")
    inputs = _inputs()
    changed = inputs.copy()
    changed[:, 4:] += 1
    values = [deq(x) for x in (inputs, changed)]
    np.testing.assert_allclose(values[0][:, :4], values[1][:, :4], atol=1e-12)
    assert np.abs(values[0] - values[1])[:, 4:].max() > 1e-2


def test_masked_memory_is_ignored():
    cell = _cell()
    state = _inputs(seed=2)
    inputs = _tensors(_inputs())
    expected = cell(state, cell.inject(inputs))
    memory = _tensors(_memory(5, mask=np.zeros((4, 5), bool)))
    injection = cell.inject({"inputs": inputs, "memory": memory})
    np.testing.assert_allclose(cell(state, injection), expected, atol=1e-12)
    # Two filled positions, right before the sequence, behind three empty ones.
    full = _memory(2)
    padded = {
        name: np.concatenate([np.full((4, 3, array.shape[2]), 7.0), array], axis=1)
        for name, array in full.items()
    }
    padded["mask"] = np.array([[False] * 3 + [True] * 2] * 4)
    values = [
        cell(state, cell.inject({"inputs": inputs, "memory": memory}))
        for memory in map(_tensors, (full, padded))
    ]
    np.testing.assert_allclose(values[0], values[1], atol=1e-12)


def test_memory_of_states_and_of_keys_are_the_same():
    cell = _cell(normalize_first=True)
    inputs, state = _tensors(_inputs()), _inputs(seed=2)
    memory = _tensors(_memory())
    remembered = {"injection": memory["injections"]}
    remembered["query_key_value"] = cell.inject(inputs)["attention"]["query_key_value"]
    keys, values = cell.attention.keys_and_values(
        cell.norm(memory["states"]), remembered
    )
    results = [
        cell(state, cell.inject({"inputs": inputs, "memory": memory}))
        for memory in (memory, {"keys": keys, "values": values})
    ]
    np.testing.assert_allclose(*results, atol=1e-12)
