"""A model of each family, as the shipped configs make it, with its first batches."""

import itertools
from typing import Any, NamedTuple

import keras

import deq_keras

from ... import registry
from ...config import reading as configs
from ...config import shipped
from ...data.images import load, training_batches
from ...runs.train import enter_phase


class Family(NamedTuple):
    """A compiled model and what it is trained on.

    Attributes:
        model: a `keras.Model`.
        batches: list of what `train_on_batch` takes, tuples.
        layer: its `DEQ` layer.
        inputs: what the layer is called with, of the first batch.
    """

    model: Any
    batches: list
    layer: Any
    inputs: Any


# Name -> config, variant and what is changed of it. XLA compiles no memory of segments,
# and draws another dropout.
_CONFIGS = {
    "convolutional": ("digits/main", "regularized", ("model.cell.dropout_rate=0",)),
    "mdeq": ("mdeq/digits", "weight_0", ()),
    "transformer": (
        "deq_transformer/characters",
        "contraction",
        ("model.memory_length=0",),
    ),
    "wide_convolutional": (
        "digits/main",
        "regularized",
        (
            "model.cell.dropout_rate=0",
            "model.stem.filters=96",
            "model.cell.filters=96",
        ),
    ),
    "wide_transformer": (
        "deq_transformer/characters",
        "contraction",
        (
            "model.memory_length=0",
            "model.hidden_dim=512",
            "model.intermediate_dim=2048",
        ),
    ),
}


def build(name, precision, jit_compile, num_batches):
    """Returns the `Family` of a name.

    Args:
        name: one of `training.benchmarks.half_precision.NAMES`.
        precision: str. A Keras dtype policy.
        jit_compile: bool.
        num_batches: int.
    """
    keras.utils.set_random_seed(0)
    if name == "dense":
        return _dense(precision, jit_compile, num_batches)
    path, variant, changes = _CONFIGS[name]
    assignments = [f"precision={precision}", f"jit_compile={jit_compile}", *changes]
    config = configs.load(shipped.find(path), assignments)
    config = configs.variant(config, variant)
    job_class = registry.implementation(config.experiment)
    job = job_class(config, job_class.load_data(config.data, None))
    model, optimizer, spans = job.build()
    enter_phase(job, model, spans[-1], optimizer)
    batches = _first(job.fit_arguments(range(1_000))["x"], num_batches)
    opened = job.cut(model)
    samples = next(iter(job.samples(model)))
    inputs = opened.encode(samples[: len(batches[0][0])], training=False)
    return Family(model, batches, opened.layer, inputs)


def _dense(precision, jit_compile, num_batches):
    """A `DenseCell` of 512 units on handwritten digits, as vectors."""
    digits = load(configs.load(shipped.find("digits/main")).data)
    policy = keras.DTypePolicy(precision)
    pixels = keras.Input(digits.image_shape)
    features = keras.layers.Rescaling(1 / 255, dtype=policy)(pixels)
    features = keras.layers.Flatten(dtype=policy)(features)
    layer = deq_keras.layers.DEQ(
        deq_keras.layers.DenseCell(512, dtype=policy),
        # No more evaluations in bfloat16, whose rounding is no smaller.
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
    config = configs.load(shipped.find("digits/main"))
    stream = training_batches(
        digits.training, 64, config.data.augmentation, 0, range(1_000)
    )
    batches = _first(stream, num_batches)
    encode = keras.Model(pixels, features)
    return Family(model, batches, layer, encode(batches[0][0]))


def _first(stream, count):
    """Returns batches as tuples of what `train_on_batch` takes."""
    batches = itertools.islice(stream, count)
    return [batch if isinstance(batch, tuple) else (batch,) for batch in batches]
