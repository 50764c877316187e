"""Write a cell: two populations of neurons that drive each other to an equilibrium."""

import keras
import numpy as np
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable(package="examples")
class ExcitationInhibitionCell(deq_keras.layers.EquilibriumCell):
    """Two populations: e = tanh(A e - B i + x), i = tanh(C e)"""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        options = {"use_bias": False, "kernel_initializer": "random_uniform"}
        self.projection = keras.layers.Dense(units, dtype=self.dtype_policy)
        self.excite, self.inhibit, self.drive = (
            keras.layers.Dense(units, name=name, dtype=self.dtype_policy, **options)
            for name in ("excite", "inhibit", "drive")
        )

    def inject(self, inputs, training=False):  # once per solve
        return self.projection(inputs)

    def initial_state(self, injection):
        return {"e": ops.zeros_like(injection), "i": ops.zeros_like(injection)}

    def call(self, state, injection):  # in each evaluation
        e = self.excite(state["e"]) - self.inhibit(state["i"]) + injection
        return {"e": ops.tanh(e), "i": ops.tanh(self.drive(state["e"]))}

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def make(**dtype):
    return ExcitationInhibitionCell(8, **dtype)


random = np.random.default_rng(0)
# It checks that calls are pure, that samples do not depend on each other, and more.
deq_keras.testing.check_cell(make, random.normal(size=(4, 3)).astype("float32"))

x = random.normal(size=(512, 6)).astype("float32")
y = np.sin(x[:, :1] * x[:, 1:2])
keras.utils.set_random_seed(0)
inputs = keras.Input((6,))
deq = deq_keras.DEQ(ExcitationInhibitionCell(32), name="deq")
model = keras.Model(inputs, keras.layers.Dense(1)(deq(inputs)["e"]))
model.compile(keras.optimizers.Adam(1e-2), "mse")
history = model.fit(x, y, epochs=30, verbose=0).history
print(f"loss {history['loss'][0]:.3f} -> {history['loss'][-1]:.3f}")
print("spectral radius", deq_keras.diagnostics.spectral_radius(model, x[:4]).value)
model.save("own_cell.keras")
same = keras.models.load_model("own_cell.keras").predict(x, verbose=0)
print("loaded model differs by", np.abs(same - model.predict(x, verbose=0)).max())
