"""A generated token over solving its prefix again."""

import keras
import numpy as np
import tensorflow as tf

from deq_keras import models

from ..timing import compare

MODEL = {
    "vocabulary_size": 65,
    "hidden_dim": 128,
    "num_heads": 4,
    "intermediate_dim": 512,
}


def token_costs(effort, prefixes=(128, 512, 1024), batch=1, num_new=32, model=MODEL):
    """Returns, by length of the prefix, the time of a token that is solved by itself
    and how many times longer it takes to solve the whole prefix for it.

    Both solve to the model's tolerance. `generate()` solves the prefix once; that is
    taken off: the time of a token is the difference of generating `num_new + 1` tokens
    and one, over `num_new`.
    """
    keras.utils.set_random_seed(0)
    causal_lm = models.DEQTransformerCausalLM(
        models.DEQTransformerBackbone(**model, solver={"class_name": "anderson"})
    )
    causal_lm.compile(sampler="greedy")
    return {
        prefix: _cost(causal_lm, prefix, batch, num_new, effort) for prefix in prefixes
    }


def _cost(causal_lm, prefix, batch, num_new, effort):
    vocabulary_size = causal_lm.backbone.vocabulary_size
    ids = np.random.default_rng(0).integers(0, vocabulary_size, (batch, prefix))
    many, one = (_generator(causal_lm, ids, new) for new in (num_new + 1, 1))
    difference = compare(many, one, effort)
    token = (difference.numerator.median - difference.denominator.median) / num_new
    solve = tf.function(lambda ids: causal_lm(ids)[:, -1])
    prefix_ids = tf.constant(ids, "int32")
    again = compare(lambda: solve(prefix_ids), one, effort).numerator.median
    return {"token_ms": token, "solve_prefix_ms": again, "ratio": again / token}


def _generator(causal_lm, ids, num_new):
    padded = np.pad(ids, ((0, 0), (0, num_new)))
    mask = np.arange(padded.shape[1]) < ids.shape[1]
    prompt = {"token_ids": padded, "padding_mask": np.broadcast_to(mask, padded.shape)}
    return lambda: causal_lm.generate(prompt, stop_token_ids=None)
