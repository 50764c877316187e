"""Random numbers: each replica draws its own."""

import tensorflow as tf

_STATE = "seed_generator_state"


def begin_at(model, replica):
    """Gives the first replica of this process the seeds of a replica of all.

    Seeds of replica r are those of the first one of all plus r. With the same seeds,
    which a strategy starts with, every replica would draw the same noise for its first
    sample, its second sample and so on.

    Args:
        model: a new model, built under the strategy.
        replica: int. Counted over all workers.
    """
    for state in _states(model):
        state.assign(state.value + [replica, 0])


def spread(strategy, model):
    """Gives the other replicas of this process their seeds.

    Args:
        strategy: the `tf.distribute.Strategy`.
        model: a model whose first replica has the right states, new or restored.
    """
    for state in _states(model):
        copies = strategy.experimental_local_results(state.value)
        first = tf.identity(copies[0])
        for replica, copy in enumerate(copies):
            copy.assign(first + [replica, 0])


def _states(model):
    return [state for state in model.variables if state.path.endswith(_STATE)]
