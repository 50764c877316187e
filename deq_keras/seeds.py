"""Saves and restores random states with the weights, as Keras does not."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import numpy as np

_KEY = "seed_generator_state"


class SavesRandomState:
    """Mixin: a layer that saves and restores the state of its `seed_generator`.

    Keras' own layers, such as `Dropout`, do not: their draws start over when a model is
    loaded. The state of a file is ignored where the layer was given another seed.
    """

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)
        generator = getattr(self, "seed_generator", None)
        if generator is not None:
            store[_KEY] = keras.ops.convert_to_numpy(generator.state)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        # Files of earlier versions lack the state.
        super().load_own_variables({k: store[k] for k in store.keys() if k != _KEY})
        generator = getattr(self, "seed_generator", None)
        if generator is None or _KEY not in store.keys():
            return
        saved = np.asarray(store[_KEY])
        own = keras.ops.convert_to_numpy(generator.state)
        if self.seed is None or saved[0] == own[0]:
            generator.state.assign(saved)
