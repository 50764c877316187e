"""Measures seconds of training until an accuracy, beside explicit networks.

Compares an equilibrium with the library's defaults, its explicit weight-tied twin,
which applies the same cell a fixed number of times, and an untied network of as many
layers, which is narrower to have as many parameters as the equilibrium. All three train
on the same batches with the same optimizer and learning rate.
"""

import functools
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

import deq_keras
from deq_keras import models
from deq_keras.layers import ResidualBlockCell
from training.costs import measuring
from training.experiments.defaults.build import step_peak
from training.experiments.defaults.schema import DataConfig
from training.experiments.defaults.tasks import TASKS
from training.experiments.defaults.tasks.task import Examples, accuracy, cross_entropy
from training.experiments.language_model import schema, text

DEQ, TIED, UNTIED = MODELS = ("DEQ", "weight-tied", "untied")
NOT_REACHED = "not reached"


class Contest(NamedTuple):
    """A task, and what all its models share.

    `load` returns training and held-out `Examples`. `build` takes one of `MODELS`, the
    depth of explicit networks and the training `Examples`. A training ends at the
    accuracy `target`, in %, which is measured after `every` updates, or after
    `max_updates`. The state of the untied network has `narrow_state` numbers.
    """

    load: Callable
    build: Callable
    depth: int
    batch_size: int
    learning_rate: float
    target: float
    every: int
    max_updates: int
    narrow_state: int


class ExplicitLayers(keras.layers.Layer):
    """Applies cells one after the other: an unrolled equilibrium without a solver.

        z_0 = cell_0.initial_state(u_0),    z_(l + 1) = cell_l(z_l, u_l)

    `cells` has one cell, which all layers share with its injection, or `num_layers`.
    """

    def __init__(self, cells, num_layers, **kwargs):
        super().__init__(**kwargs)
        self.cells = cells
        self.num_layers = num_layers

    def call(self, inputs, training=False):
        injections = [cell.inject(inputs, training=training) for cell in self.cells]
        state = self.cells[0].initial_state(injections[0])
        for layer in range(self.num_layers):
            index = layer % len(self.cells)
            state = self.cells[index](state, injections[index])
        return state


def build(kind, depth, training, encode, decode, cell, narrow_cell):
    """Builds a model inputs -> encoder -> DEQ or layers -> logits.

    `cell` and `narrow_cell` are tuples of units and a function of units.
    """
    units, make = narrow_cell if kind == UNTIED else cell
    if kind == DEQ:
        layer = deq_keras.layers.DEQ(make(units), name="deq")
    else:
        num_cells = depth if kind == UNTIED else 1
        layer = ExplicitLayers([make(units) for _ in range(num_cells)], depth)
    inputs = keras.Input(training.inputs.shape[1:], name="inputs")
    return keras.Model(inputs, decode(layer(encode(inputs, units))))


def _language_model(kind, depth, training):
    """Builds a DEQ-Transformer, or explicit layers of its cell."""
    del training
    vocabulary_size = _text().tokenizer.vocabulary_size()
    units, inner = (40, 152) if kind == UNTIED else (96, 384)
    if kind == DEQ:
        backbone = models.DEQTransformerBackbone(vocabulary_size, units, 4, inner)
        return models.DEQTransformerCausalLM(backbone)
    backbone = models.ExplicitTransformerBackbone(
        vocabulary_size,
        hidden_dim=units,
        num_heads=4,
        intermediate_dim=inner,
        num_layers=depth,
        weight_tied=kind == TIED,
    )
    return models.ExplicitTransformerCausalLM(backbone)


def _load_digits():
    """Returns the digits, as the `defaults` experiment splits them."""
    return _DIGITS.draw(DataConfig(task="digits_positions"), 0)


@functools.cache
def _text():
    """Returns the documentation that ships with Python, as characters."""
    return text.find(schema.TextConfig())


def _load_characters(length=64):
    """Returns segments of the text. A target is the next character."""

    def segments(ids, count=None):
        starts = length * np.arange((len(ids) - 1) // length)[:count, None]
        positions = starts + np.arange(length)
        return Examples(ids[positions], ids[positions + 1])

    return segments(_text().train), segments(_text().validation, 256)


_DIGITS = TASKS["digits_positions"]
# The targets come from a trial of one training each, with a seed of 100, which no
# measurement uses.
CONTESTS = {
    "digits": Contest(
        _load_digits,
        functools.partial(
            build,
            encode=_DIGITS.encode,
            decode=_DIGITS.decode,
            cell=(24, lambda units: ResidualBlockCell(units, 2, 4)),
            narrow_cell=(9, lambda units: ResidualBlockCell(units, 24 / units, 3)),
        ),
        depth=6,
        batch_size=64,
        learning_rate=2e-3,
        # In the trial, DEQ, twin and untied network took 45, 25 and 50 updates.
        target=98.0,
        every=5,
        max_updates=1000,
        narrow_state=8 * 8 * 9,
    ),
    "characters": Contest(
        _load_characters,
        _language_model,
        depth=6,
        batch_size=16,
        learning_rate=2e-3,
        # In the trial, the DEQ took 300 updates. The explicit networks were not tried.
        target=40.0,
        every=25,
        max_updates=1500,
        narrow_state=64 * 40,
    ),
}


def contest_of(name, effort, seeds=3):
    """Trains all models of a contest, one after the other for each seed.

    A quick `effort` makes few updates on few examples.

    Returns:
        A dict with the `target` in %, and by model a dict: `reached`, of how many
        seeds; `median_seconds`, or `NOT_REACHED` if most seeds do not reach the target;
        `parameters`; `peak_mib`, the peak memory of a training step without weights;
        and lists over seeds of what `train` returns.
    """
    contest = CONTESTS[name]
    training, held_out = contest.load()
    if effort == measuring.QUICK:
        contest, seeds = contest._replace(every=2, max_updates=4), 1
        held_out = Examples(*(array[:64] for array in held_out))
    found, facts = {kind: [] for kind in MODELS}, {}
    for seed in range(seeds):
        for kind in MODELS:
            keras.utils.clear_session()
            keras.utils.set_random_seed(seed)
            model = contest.build(kind, contest.depth, training)
            run = train(model, contest, training, held_out, seed)
            found[kind].append(run)
            print(f"{name}, {kind}, seed {seed}: {run}", file=sys.stderr, flush=True)
            if seed == seeds - 1:
                # Solves of a trained model and of a new model take different steps.
                size = 4 * contest.narrow_state
                peak = step_peak(
                    model, cross_entropy(), training, contest.batch_size, size
                )
                facts[kind] = {
                    "parameters": model.count_params(),
                    "peak_mib": measuring.NOT_MEASURABLE if peak is None else peak,
                }
    results = {kind: {**summary(found[kind]), **facts[kind]} for kind in MODELS}
    return {"target": contest.target, **results}


def summary(runs):
    """Returns the results of the seeds of one model as a dict; see `contest_of`."""
    reached = [run["reached"] for run in runs]
    # A seed without the target counts as the longest.
    seconds = [run["seconds"] if run["reached"] else math.inf for run in runs]
    median = statistics.median(seconds)
    return {
        "reached": f"{sum(reached)} of {len(runs)}",
        "median_seconds": NOT_REACHED if math.isinf(median) else median,
        **{name: [run[name] for run in runs] for name in runs[0] if name != "reached"},
    }


def train(model, contest, training, held_out, seed):
    """Trains a model until it reaches the target, and returns what it took as a dict.

    The first update compiles: its time is `compile_seconds`. `seconds` is the time of
    the others, without the measurements of the accuracy. `seed` is the seed of the
    order of the examples.
    """
    # Some gradients are large at these learning rates.
    optimizer = keras.optimizers.Adam(contest.learning_rate, global_clipnorm=1.0)
    model.compile(optimizer, cross_entropy())
    # The layer, in a language model inside of its backbone.
    deqs = [one for one in model._flatten_layers() if type(one) is deq_keras.layers.DEQ]
    seconds, evaluations, best = [], 0.0, 0.0
    batches = _batches(training, contest.batch_size, seed)
    while len(seconds) < contest.max_updates and best < contest.target:
        inputs, targets = next(batches)
        start = time.perf_counter()
        model.reset_metrics()
        logs = model.train_on_batch(inputs, targets, return_dict=True)
        float(logs["loss"])  # Waits for the update.
        seconds.append(time.perf_counter() - start)
        evaluations += (
            float(logs[f"{deqs[0].name}_evaluations"]) if deqs else contest.depth
        )
        if len(seconds) % contest.every == 0:
            logits = model.predict(held_out.inputs, batch_size=256, verbose=0)
            best = max(best, accuracy(logits, held_out.targets))
    return {
        "reached": best >= contest.target,
        "seconds": sum(seconds[1:]),
        "compile_seconds": seconds[0],
        "updates": len(seconds),
        "evaluations": evaluations,
        "best_accuracy": best,
    }


def _batches(examples, size, seed):
    """Yields batches in a random order of every epoch, without a smaller last one."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(examples.targets))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield tuple(array[rows] for array in examples)


MEASUREMENTS = {name: functools.partial(contest_of, name) for name in CONTESTS}


def _add_arguments(parser):
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="default: 3")


def main(argv=None):
    arguments = MEASUREMENTS, argv, _add_arguments
    return measuring.run("time_to_accuracy", __doc__, *arguments)


if __name__ == "__main__":
    main()
