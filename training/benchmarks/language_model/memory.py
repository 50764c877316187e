"""Peak memory of training steps, and of a process that evaluates."""

import functools

import tensorflow as tf

from deq_keras import models

from .. import fresh_process, memory, resident_memory

# Batch and length at which the papers compare memory.
BATCH, LENGTH = 15, 150
ARCHITECTURE = {"hidden_dim": 128, "num_heads": 4, "intermediate_dim": 512}
MODELS = {
    **{f"DEQ, NFE {budget}": {"budget": budget} for budget in (6, 12, 30)},
    "DEQ, NFE 12, not regularised": {"budget": 12, "regularizer": None},
    "16 layers": {"explicit": {"num_layers": 16}},
    "16 layers, recomputed": {"explicit": {"num_layers": 16, "recompute": True}},
    "16 tied layers": {"explicit": {"num_layers": 16, "weight_tied": True}},
}
WIKITEXT103 = {
    "vocabulary_size": 267735,
    "hidden_dim": 700,
    "num_heads": 10,
    "intermediate_dim": 48000,
    "cutoffs": [20000, 40000, 200000],
    "div_val": 4,
    "memory_length": 150,
    "solver": {"class_name": "anderson", "max_iter": 12},
}


def training_peaks(
    effort, chosen=MODELS, batch=BATCH, length=LENGTH, architecture=ARCHITECTURE
):
    """Returns by how many MiB memory grows in a training step, by model, or that this
    is not measurable here; see `memory.peaks`.

    That is without weights, gradients' accumulators and what the compiled step keeps.
    """
    del effort
    step = functools.partial(_training_step, batch, length, architecture)
    return memory.peaks(
        {name: functools.partial(step, **model) for name, model in chosen.items()}
    )


def evaluation_peak(effort, batch=16, length=150, architecture=WIKITEXT103):
    """Returns the peak of the resident memory of a fresh process, in MiB, that builds a
    full-size model and evaluates the perplexity of two segments."""
    del effort
    if not resident_memory.is_available():
        return memory.NOT_MEASURABLE
    return fresh_process.run(
        "language_model.memory",
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
    model = models.NextTokenLossModel(causal_lm)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            losses = model(inputs, training=True)
            loss = tf.reduce_mean(losses) + sum(model.losses)
        return tape.gradient(loss, model.trainable_variables)

    inputs = _segment(65, batch, length)
    step(inputs)  # Fills the memory: the steps that count have all their keys.
    return functools.partial(step, inputs)


def _evaluation(batch, length, architecture):
    backbone = models.DEQTransformerBackbone(**architecture)
    model = models.NextTokenLossModel(models.DEQTransformerCausalLM(backbone))
    model.compile()
    inputs = _segment(architecture["vocabulary_size"], batch, length)
    examples = models.NextTokenLossModel.examples(**inputs)
    data = tf.data.Dataset.from_tensors(examples).repeat(2)
    logs = model.evaluate(data, verbose=0, return_dict=True)
    return {"peak_mib": resident_memory.peak(), "perplexity": logs["perplexity"]}


def _segment(vocabulary_size, batch, length):
    ids = tf.random.stateless_uniform(
        (2, batch, length), (0, 1), maxval=vocabulary_size, dtype=tf.int32
    )
    return {"token_ids": ids[0], "targets": ids[1]}


if __name__ == "__main__":
    fresh_process.answer(_evaluation)
