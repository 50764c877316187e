"""`deq-keras benchmark distribution`, `tensorboard` and `input_pipeline`.

The costs of replicas on one processor, of event files and of input, for the training of
a shipped config. Steps with and without them alternate.
"""

import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from .. import registry
from ..config import reading as configs
from ..config import shipped
from ..config.fields import DistributionConfig
from ..errors import InputError
from ..experiments.classification.schema import DataConfig
from .measuring import Effort, ProcessorUsage, compare, in_fresh_process, spread
from .runner import Benchmark, positive

# Replicas drop smaller batches, but a single device would train on them.
_WHOLE_BATCHES = ("data.train_examples=1408",)
_MANY_EPOCHS = range(1_000_000)
_INPUT_ROUNDS = 10


def job_of(config, variant=None, overrides=(), devices=None):
    """Returns the job that trains a variant of a shipped config.

    Args:
        config: String, such as `"digits/main"`.
        variant: String. `None`: the first variant.
        overrides: List of strings `a.b=c` that change the config.
        devices: What `runs.distribution.start` returns. `None`: one device.
    """
    config = configs.load(shipped.find(config), overrides)
    config = configs.variant(config, variant or next(iter(config.variants)))
    job = registry.implementation(config.experiment)
    return job(config, lambda: job.load_data(config.data, None), None, devices)


def mirrored_steps(effort, **arguments):
    """Returns the cost of dividing a batch over logical devices; see `mirrored_cost`.

    It is measured in a process whose processor is divided from its start.
    """
    request = {"effort": effort, **arguments}
    return in_fresh_process("training_runs.mirrored_cost", request)


def mirrored_cost(
    effort, config="digits/main", overrides=_WHOLE_BATCHES, num_devices=2, num_steps=4
):
    """Returns the `time` ratio of steps on several devices to one, and `throughput`.

    Throughput is in samples per second, over the throughput of one device.

    Args:
        effort: The fields of a `measuring.Effort`.
        config: String. A shipped config; its first variant is trained.
        overrides: List of strings `a.b=c` that change the config.
        num_devices: Positive integer.
        num_steps: Positive integer. Steps of a round.
    """
    from ..runs import distribution

    mirrored = DistributionConfig("mirrored", logical_cpus=num_devices)
    several, one = (
        _steps(job_of(config, None, overrides, devices), devices, num_steps)
        for devices in (distribution.start(mirrored), distribution.OneDevice())
    )
    ratio = compare(several, one, Effort(*effort))
    return {"time": ratio, "throughput": 1 / ratio.median}


def _steps(job, devices, num_steps):
    """Returns a call that makes some training steps of the first phase."""
    from ..runs.train import enter_phase

    devices.check(job)
    with devices.scope():
        model, optimizer, (span, *_) = job.build()
        devices.begin(model, optimizer)
        devices.continue_from(model)
    enter_phase(job, model, span, optimizer)
    batches = job.fit_arguments(_MANY_EPOCHS)["x"]
    model.fit(batches, steps_per_epoch=1, shuffle=False, verbose=0)
    iterator = iter(batches)

    def steps():
        for _ in range(num_steps):
            logs = model.train_function(iterator)
        float(logs["loss"])  # Waits for the steps.

    return steps


def event_files(effort, config="digits/main", variant="contraction", steps=100):
    """Returns the ratio of a training step with event files to a step without.

    Epochs with and without them take turns; the work at the end of an epoch is divided
    among its steps.

    Args:
        effort: `measuring.Effort`.
        config: String. A shipped config; the last phase of `variant` is trained.
        variant: String.
        steps: Positive integer. Training steps of an epoch.

    Returns:
        A dict: `median` and quartiles over pairs of neighboring epochs; `mean` over all
        epochs, with the few in which curves are drawn; `step_ms` of a step without
        event files; `steps` of an epoch; `pairs`.
    """
    from ..runs import event_files
    from ..runs.train import enter_phase

    job = job_of(config, variant)
    model, optimizer, spans = job.build()
    enter_phase(job, model, spans[-1], optimizer)
    with tempfile.TemporaryDirectory() as folder:
        writers = event_files.callbacks(job, model, spans[-1], Path(folder))
        turns = _Turns(writers, effort)
        arguments = job.fit_arguments(_MANY_EPOCHS)
        del arguments["validation_data"]
        model.fit(
            **{**arguments, "steps_per_epoch": steps},
            epochs=len(_MANY_EPOCHS),
            callbacks=[turns],
            shuffle=False,
            verbose=0,
        )
    without, watched = np.array(turns.seconds).T
    return {
        **spread(watched / without),
        "mean": float(watched.sum() / without.sum()),
        "step_ms": float(1e3 * np.median(without) / steps),
        "steps": steps,
        "pairs": len(without),
    }


class _Turns(keras.callbacks.Callback):
    """Passes every other epoch on to callbacks, and times all epochs.

    Attributes:
        seconds: List of pairs: an epoch without the callbacks, and the next with them.
    """

    def __init__(self, callbacks, effort):
        super().__init__()
        self.seconds = []
        self._callbacks = callbacks
        self._effort = effort
        self._epochs = []

    def on_train_begin(self, logs=None):
        self._watchers = keras.callbacks.CallbackList(
            self._callbacks, model=self.model, **self.params
        )
        self._watchers.on_train_begin(logs)
        self._begin = time.perf_counter()

    def on_train_end(self, logs=None):
        self._watchers.on_train_end(logs)

    def on_epoch_begin(self, epoch, logs=None):
        self._is_watched = epoch % 2 == 1
        self._start = time.perf_counter()
        if self._is_watched:
            self._watchers.on_epoch_begin(epoch // 2, logs)

    def on_train_batch_begin(self, batch, logs=None):
        if self._is_watched:
            self._watchers.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if self._is_watched:
            self._watchers.on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._is_watched:
            self._watchers.on_epoch_end(epoch // 2, dict(logs))
        self._epochs.append(time.perf_counter() - self._start)
        # Both epochs of the first pair compile.
        self.seconds = [*zip(self._epochs[2::2], self._epochs[3::2], strict=False)]
        is_long = time.perf_counter() - self._begin >= self._effort.seconds
        if is_long and len(self.seconds) >= self._effort.min_rounds:
            self.model.stop_training = True


def input_rate(effort, config="digits/main", overrides=(), batches=100):
    """Returns the rate at which the input pipeline yields training images.

    Nothing is trained: the rate is an upper bound for training, which reads during its
    steps. Some batches are prefetched, so ten rounds of several batches are timed,
    after a round in which the buffers fill.

    Args:
        effort: `measuring.Effort`. Ignored: `batches` sets the number of rounds.
        config: String. A config whose `data` is a `DataConfig`.
        overrides: List of strings `a.b=c` that change the config.
        batches: Positive integer. Batches of all rounds together, rounded up.

    Returns:
        A dict: `images_per_second`, its median and quartiles over the rounds;
        `first_batch_seconds`, from the start to the first batch; `other_processors`
        that other processes used meanwhile; and the sizes.

    Raises:
        InputError: If the config does not classify images.
    """
    del effort
    config = configs.load(shipped.find(config), overrides)
    if not isinstance(getattr(config, "data", None), DataConfig):
        raise InputError(
            "The benchmark `input_pipeline` is for experiments that classify images. "
            f"Received: experiment={config.experiment!r}."
        )
    from ..data import corruption
    from ..data import images as datasets

    with corruption.reported():
        return _input_rate(datasets, config, -(-batches // _INPUT_ROUNDS))


def _input_rate(datasets, config, per_round):
    images = datasets.load(config.data)
    size, count = config.data.batch_size, (_INPUT_ROUNDS + 1) * per_round
    epochs = range(-(-count // datasets.steps_per_epoch(images.training, size)))
    stream = datasets.training_batches(
        images.training, size, config.data.augmentation, config.seed, epochs
    )
    start = time.perf_counter()
    stream = iter(stream)

    def images_in(num_batches):
        return sum(int(next(stream)[1].shape[0]) for _ in range(num_batches))

    images_in(1)
    first_batch_seconds = time.perf_counter() - start
    print(f"warming up: {per_round} batches", file=sys.stderr, flush=True)
    images_in(per_round - 1)
    usage, rates = ProcessorUsage(), []
    for _ in range(_INPUT_ROUNDS):
        start = time.perf_counter()
        rates.append(images_in(per_round) / (time.perf_counter() - start))
    return {
        "images_per_second": spread(rates),
        "rounds": _INPUT_ROUNDS,
        "batches_per_round": per_round,
        "image_shape": list(images.image_shape),
        "first_batch_seconds": first_batch_seconds,
        "other_processors": usage.others(),
        "data": configs.to_mapping(config)["data"],
    }


def _add_input_arguments(parser):
    parser.add_argument(
        "--config", required=True, help="a YAML file, or a shipped config: digits/main"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="A.B=C",
        help="replace a value of the config; may be repeated",
    )
    parser.add_argument(
        "--batches",
        type=positive,
        default=100,
        metavar="N",
        help="batches to measure, rounded up to ten rounds; default: 100",
    )


BENCHMARKS = {
    "distribution": Benchmark(
        "Measures training steps on mirrored devices of one processor.",
        {"mirrored": mirrored_steps},
    ),
    "tensorboard": Benchmark(
        "Measures training with and without event files.", {"digits": event_files}
    ),
    "input_pipeline": Benchmark(
        "Measures the stream of training images.",
        {"input": input_rate},
        add_arguments=_add_input_arguments,
    ),
}
