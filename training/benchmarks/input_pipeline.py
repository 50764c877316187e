"""`deq-keras benchmark input_pipeline`: how fast a config's training images come.

Nothing is trained: the rate bounds that of training, which reads beside its steps.
"""

import argparse
import json
import sys
import time

import numpy as np

from ..config import reading as configs
from ..config import shipped
from ..errors import InputError
from ..experiments.classification.schema import DataConfig
from . import environment
from .processor_usage import ProcessorUsage

_ROUNDS = 10


def main(argv=None):
    """Runs the benchmark and prints its results as JSON.

    Args:
        argv: list of command-line arguments. `None`: those of the process.

    Returns:
        The exit status, an int.
    """
    arguments = _parser().parse_args(argv)
    config = configs.load(shipped.find(arguments.config), arguments.overrides)
    if not isinstance(getattr(config, "data", None), DataConfig):
        raise InputError(
            "The benchmark `input_pipeline` is for experiments that classify images. "
            f"Received: experiment={config.experiment!r}."
        )
    from ..data import corruption

    with corruption.reported():
        measured = measure(config, arguments.batches)
    results = {
        "environment": environment.describe(),
        "data": configs.to_mapping(config)["data"],
        **measured,
    }
    print(json.dumps(results, indent=1))
    return 0


def measure(config, num_batches):
    """Returns the rate at which the training batches of a config come.

    Batches wait prefetched or are waited for, so ten rounds of several are timed, after
    one more in which the buffers fill.

    Args:
        config: the config of an experiment whose `data` is a `DataConfig`.
        num_batches: int. Batches of all rounds together.

    Returns:
        A dict: `images_per_second`, a dict of `median`, `lower_quartile` and
        `upper_quartile` over the rounds; `rounds`; `batches_per_round`; `image_shape`;
        `first_batch_seconds`, from the start to the first batch; `other_processors`
        that other processes used meanwhile, or `None` where that is unknown.
    """
    # Imports TensorFlow.
    from ..data import images as datasets

    images = datasets.load(config.data)
    per_round = -(-num_batches // _ROUNDS)
    batches = _batches(datasets, config, images.training, (_ROUNDS + 1) * per_round)
    start = time.perf_counter()
    next(batches)
    first_batch_seconds = time.perf_counter() - start
    print(f"warming up: {per_round} batches", file=sys.stderr, flush=True)
    _images_in(batches, per_round - 1)
    usage, rates = ProcessorUsage(), []
    print(f"measuring: {_ROUNDS * per_round} batches", file=sys.stderr, flush=True)
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        count = _images_in(batches, per_round)
        rates.append(count / (time.perf_counter() - start))
    lower, median, upper = map(float, np.quantile(rates, [0.25, 0.5, 0.75]))
    return {
        "images_per_second": {
            "median": median,
            "lower_quartile": lower,
            "upper_quartile": upper,
        },
        "rounds": _ROUNDS,
        "batches_per_round": per_round,
        "image_shape": list(images.image_shape),
        "first_batch_seconds": first_batch_seconds,
        "other_processors": usage.others(),
    }


def _batches(datasets, config, split, count):
    """Iterates over at least so many training batches."""
    size = config.data.batch_size
    epochs = range(-(-count // datasets.steps_per_epoch(split, size)))
    return iter(
        datasets.training_batches(
            split, size, config.data.augmentation, config.seed, epochs
        )
    )


def _images_in(batches, count):
    return sum(int(next(batches)[1].shape[0]) for _ in range(count))


def _parser():
    parser = argparse.ArgumentParser(
        prog="deq-keras benchmark input_pipeline",
        description="Measures the stream of training images, on a quiet machine.",
    )
    parser.add_argument(
        "--config",
        required=True,
        help="a YAML file, or a shipped config: digits/main",
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
        type=_positive,
        default=100,
        metavar="N",
        help="batches to measure, rounded up to ten rounds; default: 100",
    )
    return parser


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
