"""Cells for the tests of the DEQ layer."""

import keras
from keras import ops

from deq_keras import layers


@keras.saving.register_keras_serializable("deq_keras_tests")
class TanhCell(layers.EquilibriumCell):
    """f(z, u) = tanh(z W + u) with u = x V + b."""

    def __init__(self, units, scale=0.4, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.scale = scale
        self.recurrent = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=keras.initializers.Orthogonal(scale, seed=1),
            dtype=self.dtype_policy,
        )
        self.projection = keras.layers.Dense(
            units,
            kernel_initializer=keras.initializers.GlorotUniform(seed=2),
            dtype=self.dtype_policy,
        )

    def inject(self, inputs, training=False):
        return self.projection(inputs)

    def call(self, state, injection):
        return ops.tanh(self.recurrent(state) + injection)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "scale": self.scale}


@keras.saving.register_keras_serializable("deq_keras_tests")
class TwoScaleCell(layers.EquilibriumCell):
    """A state of a vector and a map, from an input of a dict."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        small = keras.initializers.RandomNormal(stddev=0.1, seed=3)
        self.mix = keras.layers.Dense(
            2 * units, kernel_initializer=small, dtype=self.dtype_policy
        )
        self.project = keras.layers.Dense(
            2 * units,
            kernel_initializer=keras.initializers.GlorotUniform(seed=4),
            dtype=self.dtype_policy,
        )

    def inject(self, inputs, training=False):
        return {"u": self.project(ops.concatenate([inputs["x"], inputs["y"]], axis=-1))}

    def initial_state(self, injection):
        zeros = ops.zeros_like(injection["u"])
        return {
            "vector": zeros[:, : self.units],
            "map": ops.reshape(zeros[:, self.units :], (-1, self.units, 1)),
        }

    def call(self, state, injection):
        flat = ops.concatenate([state["vector"], state["map"][:, :, 0]], axis=-1)
        new = ops.tanh(self.mix(flat) + injection["u"])
        return {
            "vector": new[:, : self.units],
            "map": ops.reshape(new[:, self.units :], (-1, self.units, 1)),
        }

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class LinearCell(layers.EquilibriumCell):
    """f(z, u) = rate z + u, whose Jacobian is rate I. The rate is a weight."""

    def __init__(self, rate=0.5, **kwargs):
        super().__init__(**kwargs)
        self.rate = self.add_weight(shape=(), initializer=lambda *_, **__: rate)

    def call(self, state, injection):
        return self.rate * state + injection


class HidingCell(TanhCell):
    """Its injection has a row for each sample, which no static shape shows."""

    def inject(self, inputs, training=False):
        flat = ops.reshape(inputs, (-1, 4))
        length = ops.shape(inputs)[1]
        return ops.reshape(self.projection(flat), (-1, length, self.units))


class FunctionCell(layers.EquilibriumCell):
    """A cell of bare functions, to try out what a cell may and may not do."""

    def __init__(self, function, initial_state=None, inject=None, **kwargs):
        super().__init__(**kwargs)
        self.functions = (function, initial_state, inject)

    def inject(self, inputs, training=False):
        inject = self.functions[2]
        return inputs if inject is None else inject(inputs)

    def initial_state(self, injection):
        initial_state = self.functions[1] or super().initial_state
        return initial_state(injection)

    def call(self, state, injection):
        return self.functions[0](state, injection)


class SubclassedModel(keras.Model):
    """A model whose layers do not tell in which order they are called."""

    def __init__(self):
        super().__init__()
        self.deq = layers.DEQ(layers.DenseCell(4))

    def call(self, inputs):
        return self.deq(inputs)
