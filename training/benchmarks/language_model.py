"""`deq-keras benchmark language_model`: the costs of a DEQ-Transformer.

Measures training steps relative to their ideal, the gain of one injection per solve,
generated tokens relative to a new solve of their prefix, the peak memory of training
steps compared with explicit layers, and the memory to evaluate the WikiText-103 model.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from deq_keras import layers, models, solvers

from . import costs
from .measuring import compare, in_fresh_process, resident_memory
from .runner import Benchmark
from .workloads import Workload

# The small model of the configs, and the published one of WikiText-103.
_CELLS = {
    "128 wide": {
        "cell": {"units": 128, "num_heads": 4, "intermediate_dim": 512},
        "batch": 12,
        "length": 64,
    },
    "700 wide": {
        "cell": {"units": 700, "num_heads": 10, "intermediate_dim": 48000},
        "batch": 1,
        "length": 150,
    },
}
_ARCHITECTURE = {"hidden_dim": 128, "num_heads": 4, "intermediate_dim": 512}
_CHARACTERS = {"vocabulary_size": 65, **_ARCHITECTURE}
_WIKITEXT103 = {
    "vocabulary_size": 267735,
    "hidden_dim": 700,
    "num_heads": 10,
    "intermediate_dim": 48000,
    "cutoffs": [20000, 40000, 200000],
    "div_val": 4,
    "memory_length": 150,
    "solver": {"class_name": "anderson", "max_iter": 12},
}
_MODELS = {
    **{f"DEQ, NFE {budget}": {"budget": budget} for budget in (6, 12, 30)},
    "DEQ, NFE 12, not regularized": {"budget": 12, "regularizer": None},
    "16 layers": {"explicit": {"num_layers": 16}},
    "16 layers, recomputed": {"explicit": {"num_layers": 16, "recompute": True}},
    "16 tied layers": {"explicit": {"num_layers": 16, "weight_tied": True}},
}


def step_costs(effort, cells=_CELLS, num_evaluations=12, solver="anderson"):
    """Returns training steps over their ideal, by cell; see `costs.step_cost`."""
    return {
        name: costs.step_cost(_workload(name, **sizes), solver, num_evaluations, effort)
        for name, sizes in cells.items()
    }


class RepeatedInjectionCell(layers.EquilibriumCell):
    """Injects at every evaluation instead of once per solve."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def initial_state(self, inputs):
        return tf.zeros_like(inputs["inputs"])

    def call(self, state, inputs):
        return self.cell(state, self.cell.inject(inputs))


def injection_costs(effort, cells=_CELLS, num_evaluations=12):
    """Returns the ratio of a solve that injects at every evaluation to a solve that
    injects once, by cell. Both have a memory as long as the segment."""
    results = {}
    for name, sizes in cells.items():
        work = _workload(name, **sizes)
        memory = {
            "states": tf.random.stateless_normal(work.injection.shape, (0, 3)),
            "injections": work.cell.injection_projection(work.injection),
        }
        inputs = {"inputs": work.injection, "memory": memory}
        repeated, once = (
            _solve(cell, inputs, num_evaluations)
            for cell in (RepeatedInjectionCell(work.cell), work.cell)
        )
        results[name] = compare(repeated, once, effort)
    return results


def _workload(name, cell, batch, length):
    """Returns the `Workload` of a Transformer cell with random weights and inputs."""
    keras.utils.set_random_seed(0)
    built = layers.TransformerCell(**cell)
    shape = (batch, length, built.units)
    built.build(shape)
    inputs, target = (tf.random.stateless_normal(shape, (0, seed)) for seed in (1, 2))
    return Workload(name, built, inputs, target)


def _solve(cell, inputs, num_evaluations):
    deq = costs.layer(cell, solvers.FixedPointIteration(num_evaluations, tol=None))
    deq(inputs)  # Builds it.
    solve = tf.function(lambda inputs: deq.solve(inputs).value)
    return functools.partial(solve.get_concrete_function(inputs), inputs)


def token_costs(
    effort, prefixes=(128, 512, 1024), batch=1, num_new=32, model=_CHARACTERS
):
    """Returns the time of a generated token and of solving its prefix again, by length.

    Both solve to the model's tolerance. `generate()` solves the prefix once; that is
    subtracted: the time of a token is the difference between generating `num_new + 1`
    tokens and one, over `num_new`.
    """
    keras.utils.set_random_seed(0)
    causal_lm = models.DEQTransformerCausalLM(
        models.DEQTransformerBackbone(**model, solver={"class_name": "anderson"})
    )
    causal_lm.compile(sampler="greedy")
    return {
        prefix: _token_cost(causal_lm, prefix, batch, num_new, effort)
        for prefix in prefixes
    }


def _token_cost(causal_lm, prefix, batch, num_new, effort):
    vocabulary_size = causal_lm.backbone.vocabulary_size
    ids = np.random.default_rng(0).integers(0, vocabulary_size, (batch, prefix))
    many, one = (_generator(causal_lm, ids, new) for new in (num_new + 1, 1))
    token = compare(many, one, effort).difference / num_new
    solve = tf.function(lambda ids: causal_lm(ids)[:, -1])
    prefix_ids = tf.constant(ids, "int32")
    again = compare(lambda: solve(prefix_ids), one, effort).numerator.median
    return {"token_ms": token, "solve_prefix_ms": again, "ratio": again / token}


def _generator(causal_lm, ids, num_new):
    padded = np.pad(ids, ((0, 0), (0, num_new)))
    mask = np.arange(padded.shape[1]) < ids.shape[1]
    prompt = {"token_ids": padded, "padding_mask": np.broadcast_to(mask, padded.shape)}
    return lambda: causal_lm.generate(prompt, stop_token_ids=None)


def training_peaks(
    effort, chosen=_MODELS, batch=15, length=150, architecture=_ARCHITECTURE
):
    """Returns the peak memory of a training step, by model; see `costs.peaks`.

    The papers compare memory at this batch and length.
    """
    del effort
    shared = {"batch": batch, "length": length, "architecture": architecture}
    return costs.peaks(_training_step, chosen, **shared)


def evaluation_peak(effort, batch=16, length=150, architecture=_WIKITEXT103):
    """Returns the peak of resident memory in MiB of a fresh process that builds a
    full-size model and evaluates the perplexity of two segments."""
    del effort
    if resident_memory() is None:
        return costs.NOT_MEASURABLE
    return in_fresh_process(
        "language_model.evaluate",
        {"batch": batch, "length": length, "architecture": architecture},
    )


def _training_step(batch, length, architecture, budget=None, explicit=None, **deq):
    shared = {"vocabulary_size": 65, **architecture, "memory_length": length}
    if explicit is None:
        backbone = models.DEQTransformerBackbone(
            **shared,
            solver={"class_name": "anderson", "max_iter": budget, "tol": 0.0},
            gradient={"class_name": "neumann", "num_terms": budget},
            **deq,
        )
        causal_lm = models.DEQTransformerCausalLM(backbone)
    else:
        backbone = models.ExplicitTransformerBackbone(**shared, **explicit)
        causal_lm = models.ExplicitTransformerCausalLM(backbone)
    return training_step(causal_lm, batch, length)


def training_step(causal_lm, batch, length):
    """Returns the compiled step of a language model, a function without arguments.

    It returns the gradients. The step has run once, so that a memory of previous
    segments is full.

    Args:
        causal_lm: Language model of the library.
        batch: Positive integer. Number of segments.
        length: Positive integer. Tokens per segment.
    """
    model = models.NextTokenLossModel(causal_lm)

    def step(inputs):
        with tf.GradientTape() as tape:
            losses = model(inputs, training=True)
            loss = tf.reduce_mean(losses) + sum(model.losses)
        return tape.gradient(loss, model.trainable_variables)

    return _after_one(step, causal_lm, batch, length)


def inference_step(causal_lm, batch, length):
    """Like `training_step`, but returns the losses of the tokens at inference."""
    model = models.NextTokenLossModel(causal_lm)
    return _after_one(model, causal_lm, batch, length)


def _after_one(call, causal_lm, batch, length):
    inputs = _segment(causal_lm.backbone.vocabulary_size, batch, length)
    step = functools.partial(tf.function(call), inputs)
    step()  # Fills the memory: the measured steps have all their keys.
    return step


def evaluate(batch, length, architecture):
    """Evaluates two segments; returns the perplexity and this process' peak memory."""
    backbone = models.DEQTransformerBackbone(**architecture)
    model = models.NextTokenLossModel(models.DEQTransformerCausalLM(backbone))
    model.compile()
    inputs = _segment(architecture["vocabulary_size"], batch, length)
    examples = models.NextTokenLossModel.examples(**inputs)
    data = tf.data.Dataset.from_tensors(examples).repeat(2)
    logs = model.evaluate(data, verbose=0, return_dict=True)
    return {"peak_mib": resident_memory(), "perplexity": logs["perplexity"]}


def _segment(vocabulary_size, batch, length):
    ids = tf.random.stateless_uniform(
        (2, batch, length), (0, 1), maxval=vocabulary_size, dtype=tf.int32
    )
    return {"token_ids": ids[0], "targets": ids[1]}


BENCHMARKS = {
    "language_model": Benchmark(
        "Measures a DEQ-Transformer.",
        {
            "step": step_costs,
            "inject": injection_costs,
            "generation": token_costs,
            "memory": training_peaks,
            "evaluation": evaluation_peak,
        },
    )
}
