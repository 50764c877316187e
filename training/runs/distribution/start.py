"""Starts what a config says of distribution, once in a process."""

from .mirrored import mirrored
from .multi_worker import multi_worker
from .one_device import OneDevice

_STRATEGIES = {
    "single": lambda config: OneDevice(),
    "mirrored": mirrored,
    "multi_worker": multi_worker,
}


def start(config):
    """Returns the distribution of a `DistributionConfig`.

    It comes before all else that a process does with TensorFlow, and only once: the
    devices of a process are what they are when TensorFlow first looks at them.

    Raises:
        InputError: if there are no such devices or workers.
    """
    return _STRATEGIES[config.strategy](config)
