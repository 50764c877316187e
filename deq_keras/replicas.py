"""What a variable of a `tf.distribute.Strategy` is outside of its replicas."""

import tensorflow as tf


def parts(variable):
    """Returns the variables behind a Keras variable in this process, one a replica.

    Reading the variable itself may need all processes: some are sums over replicas.
    """
    return _strategy(variable).experimental_local_results(variable.value)


def count(variable):
    """Returns how many replicas of all processes share a Keras variable."""
    return _strategy(variable).num_replicas_in_sync


def _strategy(variable):
    default = tf.distribute.get_strategy()
    return getattr(variable.value, "distribute_strategy", default)
