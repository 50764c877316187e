"""`deq-keras benchmark half_precision`: short real trainings of each model family.

Compares bfloat16, float16 with loss scaling, and XLA with float32: the difference of
the losses, the time of a step, and the gain of its parts. A profile of the float32 step
bounds the possible gain of faster products by Amdahl's law.
"""

import functools
import itertools
import re
import time
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import deq_keras

from ..config import reading as configs
from ..config import shipped
from ..data.images import load, training_batches
from ..runs.train import enter_phase
from .costs import profile
from .measuring import spread
from .runner import Benchmark
from .training_runs import job_of

# Dtype policy and whether XLA compiles.
REGIMES = {
    "float32": ("float32", False),
    "mixed_bfloat16": ("mixed_bfloat16", False),
    "mixed_float16": ("mixed_float16", False),
    "float32, XLA": ("float32", True),
    "mixed_bfloat16, XLA": ("mixed_bfloat16", True),
}
# XLA compiles wide convolutions for minutes.
_REGIMES_OF_WIDE = ("float32", "mixed_bfloat16", "mixed_float16")
# Config, variant and overrides of a family. XLA cannot compile the memory of segments,
# and draws another dropout.
_CONVOLUTIONAL = ("digits/main", "contraction", ("model.cell.dropout_rate=0",))
_TRANSFORMER = (
    "deq_transformer/characters",
    "contraction",
    ("model.memory_length=0",),
)
_TRELLISNET = (
    "trellisnet/characters",
    "equilibrium",
    ("model.memory_length=0", "model.hidden_dropout=0", "model.output_dropout=0"),
)
_CONFIGS = {
    "convolutional": _CONVOLUTIONAL,
    "mdeq": ("mdeq/digits", "weight_0", ()),
    "transformer": _TRANSFORMER,
    "trellisnet": _TRELLISNET,
    "wide_convolutional": (
        *_CONVOLUTIONAL[:2],
        (*_CONVOLUTIONAL[2], "model.stem.filters=96", "model.cell.filters=96"),
    ),
    "wide_transformer": (
        *_TRANSFORMER[:2],
        (
            *_TRANSFORMER[2],
            "model.hidden_dim=512",
            "model.intermediate_dim=2048",
        ),
    ),
}
_MANY_EPOCHS = range(1_000)
# Steps in which functions are compiled, and caches are filled.
_WARM_UP = 2
_PROFILED = 3
_STEP = "training_step"
# Types of operations that half precision makes faster: `_MklMatMul`, `BatchMatMulV2`,
# `_MklNativeConv2DBackpropInput`, ...
_PRODUCTS = re.compile(r"MatMul|Conv[123]D|Einsum")


class Family(NamedTuple):
    """A compiled model and its training batches.

    Attributes:
        model: `keras.Model`.
        batches: List of tuples, the arguments of `train_on_batch`.
        layer: Its `DEQ` layer.
        inputs: Inputs of the layer for the first batch.
    """

    model: Any
    batches: list
    layer: Any
    inputs: Any


def train(name, effort, steps=30, regimes=tuple(REGIMES)):
    """Trains a family in several regimes; the models take each batch in turns.

    Args:
        name: String. The family.
        effort: `measuring.Effort`. `min_rounds` bounds `steps` of a quick measurement.
        steps: Positive integer. Training steps of each model.
        regimes: Names of `REGIMES`; the others are compared to the first.

    Returns:
        A dict with a dict for each regime: `step_ms`, median and quartiles of a step;
        `speedup`, the first regime's step over its own; `loss`, the mean over the last
        third of the steps; `loss_difference`, the mean distance there from the first
        regime's loss, relative to it; `skipped`, the steps that loss scaling skipped;
        `evaluations`, the mean NFE of the last step; `parts_ms` of the layer's step,
        measured by `deq_keras.diagnostics.StepTimer`. The first regime also has
        `amdahl`; see `amdahl`.
    """
    steps = min(steps, 2 * effort.min_rounds) if effort.seconds < 1 else steps
    families = [build(name, *REGIMES[regime], steps) for regime in regimes]
    losses, seconds, evaluations = _train(families, steps)
    seconds, last = seconds[_WARM_UP:], slice(2 * steps // 3, None)
    reference = losses[last, 0]
    results = {}
    for index, (regime, family) in enumerate(zip(regimes, families, strict=True)):
        loss = losses[last, index]
        timer = deq_keras.diagnostics.StepTimer(family.layer, REGIMES[regime][1])
        timer.measure(family.inputs)  # Compiles.
        parts = timer.measure(family.inputs)._asdict()
        results[regime] = {
            "step_ms": spread(1e3 * seconds[:, index]),
            "speedup": spread(seconds[:, 0] / seconds[:, index]),
            "loss": float(loss.mean()),
            "loss_difference": float(
                np.abs(loss - reference).mean() / abs(reference.mean())
            ),
            "skipped": steps - int(family.model.optimizer.iterations),
            "evaluations": evaluations[index],
            "parts_ms": {part: 1e3 * value for part, value in parts.items()},
        }
    results[regimes[0]]["amdahl"] = amdahl(families[0])
    return results


def amdahl(family):
    """Returns the possible gain of faster products, from a profile of training steps.

    Args:
        family: `Family`, which trains on its last batches.

    Returns:
        A dict: `products`, the fraction of the time of a step in which at least one
        product or convolution runs; `speedup`, how many times as fast a step is if
        these take half as long. Each number has its median and quartiles over steps.
    """

    def train():
        for batch in family.batches[-_PROFILED:]:
            with tf.profiler.experimental.Trace(_STEP):
                logs = family.model.train_on_batch(*batch, return_dict=True)
                float(logs["loss"])  # Waits for the step.

    steps, products = _spans(profile(train))
    fractions = np.array([_covered(step, products) for step in steps])
    return {
        "products": spread(fractions),
        "speedup": spread(1 / (1 - fractions / 2)),
    }


def _spans(planes):
    """Returns start and end of steps and of products, lists of pairs of picoseconds."""
    steps, products = [], []
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                # Operations are named `name:type`.
                name = plane.event_metadata[event.metadata_id].name
                start = 1000 * line.timestamp_ns + event.offset_ps
                span = (start, start + event.duration_ps)
                if name == _STEP:
                    steps.append(span)
                elif _PRODUCTS.search(name.rpartition(":")[2]):
                    products.append(span)
    return steps, products


def _covered(step, spans):
    """Returns the fraction of a step that the union of spans covers."""
    begin, end = step
    covered, last = 0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, last), min(stop, end)
        if stop > start:
            covered, last = covered + stop - start, stop
    return covered / (end - begin)


def _train(families, steps):
    """Returns losses and seconds, arrays `(steps, families)`, and the last NFE."""
    losses, seconds = np.zeros((2, steps, len(families)))
    evaluations = [None] * len(families)
    for step in range(steps):
        for index, family in enumerate(families):
            family.model.reset_metrics()
            start = time.perf_counter()
            logs = family.model.train_on_batch(*family.batches[step], return_dict=True)
            losses[step, index] = logs["loss"]  # Waits for the step.
            seconds[step, index] = time.perf_counter() - start
            evaluations[index] = float(logs[f"{family.layer.name}_evaluations"])
    return losses, seconds, evaluations


def build(name, precision, jit_compile, num_batches):
    """Returns the `Family` of a name.

    Args:
        name: `"dense"` or a key of `_CONFIGS`.
        precision: String. A Keras dtype policy.
        jit_compile: Boolean.
        num_batches: Positive integer.
    """
    keras.utils.set_random_seed(0)
    if name == "dense":
        return _dense(precision, jit_compile, num_batches)
    config, variant, overrides = _CONFIGS[name]
    regime = (f"precision={precision}", f"jit_compile={jit_compile}")
    job = job_of(config, variant, [*regime, *overrides])
    model, optimizer, spans = job.build()
    enter_phase(job, model, spans[-1], optimizer)
    batches = _first(job.fit_arguments(_MANY_EPOCHS)["x"], num_batches)
    opened = job.split(model)
    samples = next(iter(job.samples(model)))
    inputs = opened.encode(samples[: len(batches[0][0])])
    return Family(model, batches, opened.layer, inputs)


def _dense(precision, jit_compile, num_batches):
    """A `DenseCell` of 512 units on handwritten digits, as vectors."""
    data = configs.load(shipped.find("digits/main")).data
    digits = load(data)
    policy = keras.DTypePolicy(precision)
    pixels = keras.Input(digits.image_shape)
    features = keras.layers.Rescaling(1 / 255, dtype=policy)(pixels)
    features = keras.layers.Flatten(dtype=policy)(features)
    layer = deq_keras.layers.DEQ(
        deq_keras.layers.DenseCell(512, dtype=policy),
        # A tolerance that bfloat16 reaches, so that all regimes spend the same NFE.
        solver={"class_name": "anderson", "max_iter": 12, "tol": 1e-2},
        gradient="neumann",
        seed=0,
        dtype=policy,
        name="deq",
    )
    logits = keras.layers.Dense(digits.num_classes, dtype="float32")(layer(features))
    model = keras.Model(pixels, logits)
    optimizer = keras.optimizers.Adam(1e-3)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    stream = training_batches(digits.training, 64, data.augmentation, 0, _MANY_EPOCHS)
    batches = _first(stream, num_batches)
    encode = keras.Model(pixels, features)
    return Family(model, batches, layer, encode(batches[0][0]))


def _first(stream, count):
    """Returns batches as tuples of arguments of `train_on_batch`."""
    batches = itertools.islice(stream, count)
    return [batch if isinstance(batch, tuple) else (batch,) for batch in batches]


BENCHMARKS = {
    "half_precision": Benchmark(
        "Trains each family of models in lower precision and by XLA.",
        {
            name: functools.partial(train, name, regimes=_REGIMES_OF_WIDE)
            if name.startswith("wide_")
            else functools.partial(train, name)
            for name in ("dense", *_CONFIGS)
        },
    )
}
