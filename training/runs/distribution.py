"""The devices that train a run."""

import contextlib
import functools

import keras
import tensorflow as tf
from keras import tree

from ..data.pipeline import prefetch
from ..errors import InputError
from . import platform_repairs
from .callbacks import Stopwatch


def start(config):
    """Returns the distribution of a `DistributionConfig`.

    Call it once per process, before any other use of TensorFlow, which fixes the
    devices of a process on first use.

    Raises:
        InputError: If the devices do not exist, or TensorFlow has already started with
            another number of logical CPUs.
    """
    return _mirror(config) if config.strategy == "mirrored" else OneDevice()


def _mirror(config):
    """Returns the `Replicas` on the devices of this machine."""
    if config.logical_cpus is not None:
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
            f"`distribution.devices` must be among the available devices, {known}. "
            "For more CPUs, set distribution.logical_cpus. Received: "
            f"devices={devices}."
        )
    return Replicas(tf.distribute.MirroredStrategy(devices))


def _divide_cpu(count):
    """Splits the CPU into logical devices."""
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


class OneDevice:
    """A single device, without a strategy.

    Attributes:
        drops_remainder: Boolean. Whether training epochs drop a smaller last batch.
        stopwatch: `Stopwatch` of the data that `fit` reads.
    """

    drops_remainder = False

    def __init__(self):
        self.stopwatch = Stopwatch()
        self._preprocessed = Preprocessing()

    def check(self, feed):
        """Raises `InputError` if this distribution cannot train on a `Feed`."""
        del feed
        self._preprocessed = Preprocessing()  # Forgets the previous model.

    def scope(self):
        """Returns the context in which models and optimizers are created."""
        return contextlib.nullcontext()

    def begin(self, model, optimizer):
        """Prepares a new model and its optimizer for training."""
        del optimizer
        self._preprocessed.take_over_from(model)

    def continue_from(self, model):
        """Completes the state of a new or restored model."""

    def batches(self, dataset):
        """Returns the dataset that `fit` reads, from one of whole batches."""
        return self.stopwatch.over(self._preprocessed(dataset))

    def validation_steps(self, num_examples, batch_size):
        """Returns the `validation_steps` of `fit`. `None` reads all data."""
        del num_examples, batch_size


class Replicas:
    """The replicas of a `tf.distribute` strategy, which train synchronously.

    All replicas share a batch of the config. A step computes the same result as on one
    device: the mean of the losses, the sum of the gradients before clipping, and
    normalization statistics over the whole batch. Each replica draws its own random
    numbers. See `OneDevice` for common attributes.

    Args:
        strategy: A `tf.distribute.Strategy`.
    """

    drops_remainder = True

    def __init__(self, strategy):
        self.strategy = strategy
        self.stopwatch = Stopwatch()
        self._preprocessed = Preprocessing()

    @property
    def num_replicas(self):
        """Returns the number of replicas."""
        return self.strategy.num_replicas_in_sync

    def check(self, feed):
        """Raises `InputError` if this distribution cannot train on a `Feed`."""
        self._preprocessed = Preprocessing()  # Forgets the previous model.
        config = feed.config
        strategy = f"strategy={config.distribution.strategy}."
        if feed.batch_sizes is None:
            raise InputError(
                f"`distribution.strategy` must be single for {config.experiment}: "
                f"its data do not tell `batch_sizes`. Received: {strategy}"
            )
        if config.jit_compile is True:
            raise InputError(
                "`jit_compile` must be false or auto where several devices train: XLA "
                f"compiles for one. Received: jit_compile=True, {strategy}"
            )
        accumulation = config.optimizer.accumulation_steps
        if accumulation > 1:
            raise InputError(
                "`optimizer.accumulation_steps` must be 1 where several devices train: "
                "Keras cannot accumulate gradients of replicas. Received: "
                f"accumulation_steps={accumulation}, {strategy}"
            )
        for name, size in feed.batch_sizes.items():
            if size % self.num_replicas:
                raise InputError(
                    f"`{name}` must be a multiple of {self.num_replicas}, the number "
                    f"of replicas. Received: {name.rpartition('.')[2]}={size}."
                )
        if not feed.steps_per_epoch:
            raise InputError(
                "`data.batch_size` must be at most the number of training examples, "
                "since replicas leave out smaller batches. Received: "
                f"batch_size={feed.batch_sizes['data.batch_size']}."
            )

    def scope(self):
        """Returns the context in which models and optimizers are created."""
        return self.strategy.scope()

    def begin(self, model, optimizer):
        """Prepares a new model and its optimizer for training."""
        platform_repairs.build_from_local_batch(model)
        self._preprocessed.take_over_from(model)
        platform_repairs.synchronize_normalization(model)
        platform_repairs.isolate_replica_losses(model)
        platform_repairs.sum_gradients_first(optimizer)

    def continue_from(self, model):
        """Completes the state of a new or restored model."""
        platform_repairs.seed_replicas(self.strategy, model)

    def batches(self, dataset):
        """Returns the dataset that `fit` reads; see `OneDevice`.

        It is infinite: the end of a finite dataset costs Keras a second per epoch.
        """

        def read(context):
            del context
            batches = self._preprocessed(dataset).repeat()
            return self.stopwatch.over(batches).flat_map(self._of_replicas)

        # Keeps batches on the host, where the stopwatch measures, as on one device.
        options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
        return self.strategy.distribute_datasets_from_function(read, options)

    def validation_steps(self, num_examples, batch_size):
        """Returns the `validation_steps` of `fit`.

        Raises:
            InputError: If a replica would receive an empty last batch, which some
                TensorFlow operations do not support.
        """
        rest = num_examples % batch_size
        if 0 < rest < self.num_replicas:
            raise InputError(
                f"`data.evaluation_batch_size` must leave at least {self.num_replicas} "
                f"of the {num_examples} validation examples, one for each replica, to "
                f"the last batch, or none. Received: evaluation_batch_size={batch_size}"
                f", which leaves {rest}."
            )
        return -(-num_examples // batch_size)

    def _of_replicas(self, *batch):
        """Returns a dataset of the parts of a batch, one per replica."""
        count = self.num_replicas
        parts = [rows(batch, index, count) for index in range(count)]
        datasets = [tf.data.Dataset.from_tensors(part) for part in parts]
        whole = datasets[0]
        for dataset in datasets[1:]:
            whole = whole.concatenate(dataset)
        return whole


def rows(batch, index, count):
    """Returns one of `count` parts of about equally many rows of a nest of tensors."""

    def part(tensor):
        # A static size stays static.
        size = tensor.shape[0] or tf.shape(tensor)[0]
        return tensor[size * index // count : size * (index + 1) // count]

    return tree.map_structure(part, batch)


class Preprocessing:
    """The preprocessing of the model being trained, if it has a preprocessor.

    KerasHub's `fit` would preprocess after the clock that measures waiting for data,
    and does not support data for several devices.
    """

    def __init__(self):
        self._function = None

    def take_over_from(self, model):
        """Moves the preprocessing from `fit` of a model to this object."""
        self._function = getattr(model, "preprocess_samples", None)
        if self._function is not None:
            model.fit = functools.partial(keras.Model.fit, model)

    def __call__(self, batches):
        """Returns a dataset of preprocessed batches."""
        if self._function is None:
            return batches
        batches = batches.map(
            self._function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return prefetch(batches)
