"""Training steps of a shipped config on one device and on several logical ones."""

from typing import NamedTuple

from .. import fresh_process
from ..timing import Effort, Ratio, compare

# Replicas leave out smaller ones, and one device would have them to itself.
_WHOLE_BATCHES = ("data.train_examples=1408",)
_MANY_EPOCHS = range(100_000)


class Cost(NamedTuple):
    """What it costs to divide a batch over logical devices.

    Attributes:
        time: `Ratio` of their steps to those of one device.
        throughput: float. Samples a second, over those of one device.
    """

    time: Ratio
    throughput: float


def measured(effort, **arguments):
    """Returns the `Cost`, measured in a process whose CPU is divided from its start.

    Args:
        effort: a `timing.Effort`.
        **arguments: of `cost`.
    """
    request = {"effort": list(effort), **arguments}
    return fresh_process.run("distribution.mirrored", request)


def cost(
    effort, config="digits/main", overrides=_WHOLE_BATCHES, num_devices=2, num_steps=4
):
    """Returns the `Cost`.

    Args:
        effort: the fields of a `timing.Effort`.
        config: str. A shipped config; its first variant is trained.
        overrides: list of strings `a.b=c`, changes of the config.
        num_devices: int.
        num_steps: int. Steps of a measurement.
    """
    from ...config import reading as configs
    from ...config import shipped
    from ...config.fields import DistributionConfig
    from ...runs import distribution

    config = configs.load(shipped.find(config), overrides)
    mirrored = DistributionConfig("mirrored", logical_cpus=num_devices)
    several = _Steps(config, distribution.start(mirrored), num_steps)
    one = _Steps(config, distribution.OneDevice(), num_steps)
    time = compare(several, one, Effort(*effort))
    return Cost(time, 1 / time.median)


class _Steps:
    """Makes some training steps of a config's first variant at each call."""

    def __init__(self, config, devices, num_steps):
        from ... import registry
        from ...config.reading import variant
        from ...runs.train import enter_phase

        config = variant(config, next(iter(config.variants)))
        job = registry.implementation(config.experiment)
        job = job(config, job.load_data(config.data, None), None, devices)
        devices.check(job)
        with devices.scope():
            self._model, optimizer, (span, *_) = job.build()
            devices.begin(self._model, optimizer)
            devices.continue_from(self._model)
        enter_phase(job, self._model, span, optimizer)
        batches = job.fit_arguments(_MANY_EPOCHS)["x"]
        self._model.fit(batches, steps_per_epoch=1, shuffle=False, verbose=0)
        self._batches = iter(batches)
        self._num_steps = num_steps

    def __call__(self):
        for _ in range(self._num_steps):
            logs = self._model.train_function(self._batches)
        float(logs["loss"])


if __name__ == "__main__":
    fresh_process.answer(cost)
