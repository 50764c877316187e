"""The equilibrium layer of a study's model."""

import contextlib

import deq_keras

from ..errors import InputError
from .equilibrium_config import LAYER_DEFAULT


def equilibrium_layer(cell, config, seed):
    """Returns the `DEQ` of a cell, named `deq`.

    Args:
        cell: the cell.
        config: the `EquilibriumConfig`.
        seed: int. Of what training draws.

    Raises:
        InputError: if a part of the layer refuses an argument.
    """
    given = {
        name: value for name, value in vars(config).items() if value != LAYER_DEFAULT
    }
    with refused_in("`equilibrium`"):
        return deq_keras.layers.DEQ(cell, seed=seed, name="deq", **given)


@contextlib.contextmanager
def refused_in(place):
    """Names the place in the config of what a part refuses."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: {error}") from error
