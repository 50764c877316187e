"""Activations as proximal maps, which solvers by operator splitting need."""

from deq_keras import serialization
from deq_keras.proximal.maps import Relu, Sigmoid, Softplus, Tanh
from deq_keras.proximal.proximal_map import ProximalMap, SmoothProximalMap
from deq_keras.serialization import Config

__all__ = [
    "ALL_OBJECTS",
    "ProximalMap",
    "Relu",
    "Sigmoid",
    "SmoothProximalMap",
    "Softplus",
    "Tanh",
    "get",
]

ALL_OBJECTS = (Relu, Sigmoid, Softplus, Tanh)


def get(identifier: str | Config | ProximalMap) -> ProximalMap:
    """Returns a proximal map from a name, a config dict or an instance.

    Args:
        identifier: `"relu"`, `"sigmoid"`, `"softplus"`, `"tanh"`; a config dict; or a
            `ProximalMap`, which is returned as it is.

    Raises:
        ValueError: For an unknown name.
    """
    return serialization.get(identifier, ProximalMap, ALL_OBJECTS, "proximal map")
