"""The devices of one machine."""

import tensorflow as tf

from ...data.pipeline import WHOLE
from ...errors import InputError
from .freed_memory import keep_freed_memory
from .replicas import Replicas


def mirrored(config):
    """Returns the `Replicas` on the devices of a `DistributionConfig`.

    Raises:
        InputError: if there are no such devices, or TensorFlow has already started with
            another number of logical CPUs.
    """
    if config.logical_cpus is not None:
        keep_freed_memory()
        _divide_cpu(config.logical_cpus)
    devices = config.devices
    known = [
        device.name.removeprefix("/device:")
        for device in tf.config.list_logical_devices()
    ]
    if devices is None:
        gpus = [name for name in known if name.startswith("GPU:")]
        devices = gpus or [name for name in known if name.startswith("CPU:")]
    missing = [name for name in devices if name not in known]
    if missing:
        raise InputError(
            f"`distribution.devices` must be among {known}, the devices there are. "
            "More CPUs: set distribution.logical_cpus. Received: "
            f"devices={devices}."
        )
    return Replicas(tf.distribute.MirroredStrategy(devices), WHOLE)


def _divide_cpu(count):
    """Makes as many logical devices of the CPU."""
    cpu, *_ = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError as error:
        known = len(tf.config.list_logical_devices("CPU"))
        if known != count:
            raise InputError(
                "`distribution.logical_cpus` must be set before TensorFlow starts, and "
                f"this process has started it with {known}. Use a new process. "
                f"Received: logical_cpus={count}."
            ) from error
