"""A model split at its equilibrium layer."""

import keras
import numpy as np
import pytest

from deq_keras.diagnostics import split_model
from deq_keras.layers import DEQ, DenseCell, TransformerCell
from deq_keras.solvers import FixedPointIteration
from tests.layers.cells import TwoScaleCell

X = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)


def _layer():
    return DEQ(DenseCell(4, seed=1))


def _nested():
    inner = keras.Sequential([keras.Input((6,)), _layer(), keras.layers.Dense(2)])
    inputs = keras.Input((3,))
    hidden = inner(keras.layers.Dense(6)(inputs))
    return keras.Model(inputs, keras.layers.Dense(5)(hidden))


def _first():
    return keras.Sequential([keras.Input((3,)), _layer(), keras.layers.Dense(2)])


def _of_a_dict():
    inputs = keras.Input((3,))
    parts = {"x": inputs, "y": keras.layers.Dense(2)(inputs)}
    state = DEQ(TwoScaleCell(4))(parts)
    return keras.Model(inputs, keras.layers.Dense(2)(state["vector"]))


def _leaf():
    inputs = keras.Input((3,))
    parts = {"x": inputs, "y": keras.layers.Dense(2)(inputs)}
    return keras.Model(inputs, DEQ(TwoScaleCell(4))(parts)["vector"])


def _bare():
    return keras.Sequential([keras.Input((3,)), _layer()])


@pytest.mark.parametrize("build", [_nested, _first, _layer, _of_a_dict, _leaf, _bare])
def test_composed_parts_equal_the_model(build):
    model = build()
    expected = model(X)
    encode, layer, head = split_model(model)
    np.testing.assert_allclose(head(layer(encode(X))), expected, atol=1e-6)
    assert isinstance(layer, DEQ)


def _around():
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Add()([inputs, _layer()(inputs)]))


class TwiceSequential(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs, training=training, mask=mask)


def _patched():
    model = _first()
    call = model.call
    model.call = lambda inputs, **kwargs: 2 * call(inputs, **kwargs)
    return model


def _inner_of_another_call():
    inner = TwiceSequential([keras.Input((3,)), _layer()])
    return keras.Sequential([keras.Input((3,)), inner])


def _given_a_state():
    inputs = keras.Input((3,))
    state = keras.layers.Dense(4)(inputs)
    return keras.Model(inputs, _layer()(inputs, initial_state=state))


def _called_twice():
    inputs, layer = keras.Input((4,)), _layer()
    return keras.Model(inputs, layer(layer(inputs)))


def _without_a_layer():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    "build",
    [
        _around,
        _without_a_layer,
        _patched,
        _inner_of_another_call,
        _given_a_state,
        _called_twice,
    ],
)
def test_other_models_raise(build):
    with pytest.raises(ValueError, match="Received"):
        split_model(build())


def test_mask_of_a_call_is_kept():
    sequence, mask = keras.Input((4, 8)), keras.Input((4,), dtype="bool")
    layer = DEQ(TransformerCell(8, 2, 16), FixedPointIteration(2), name="deq")
    model = keras.Model([sequence, mask], layer(inputs=sequence, mask=mask))
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    m = np.array([[True, True, False, False], [True, True, True, True]])
    encode, deq, _ = split_model(model)
    np.testing.assert_allclose(deq(encode([x, m])), model([x, m]), atol=1e-6)
    assert np.abs(deq(x) - model([x, m])).max() > 1e-3
