"""Variables and values of the replicas of a `tf.distribute.Strategy`."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf


def components(variable: Any) -> tuple[Any, ...]:
    """Returns the variables behind a Keras variable in this process, one per replica.

    Reading the variable itself may involve all processes: some are sums over replicas.
    """
    return _strategy(variable).experimental_local_results(variable.value)


def count(variable: Any) -> int:
    """Returns the number of replicas, over all processes, of a Keras variable."""
    return _strategy(variable).num_replicas_in_sync


def sums(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums of tensors over all replicas.

    All replicas wait for each other, so each must call this function, outside of
    control flow. Outside of a replica, the values are returned unchanged.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce("SUM", values)


def scope(variable: Any) -> AbstractContextManager:
    """Returns the scope in which variables are distributed as a Keras variable is."""
    return _strategy(variable).scope()


def _strategy(variable: Any) -> Any:
    default = tf.distribute.get_strategy()
    return getattr(variable.value, "distribute_strategy", default)
