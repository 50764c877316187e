"""The devices of several processes, which `TF_CONFIG` names."""

import tensorflow as tf

from ...data.pipeline import BatchShard
from .. import cluster
from .meeting import meet
from .replicas import Replicas


def multi_worker(config):
    """Returns the `Replicas` of all workers, once they have started.

    Args:
        config: a `DistributionConfig`.

    Raises:
        InputError: if `TF_CONFIG` names no cluster, or a worker does not start.
    """
    workers = cluster.from_environment()
    meet(workers, config.start_timeout)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return Replicas(strategy, BatchShard(workers.index, len(workers.addresses)))
