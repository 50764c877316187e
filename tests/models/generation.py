"""Checks that the causal language models share."""

import numpy as np
import tensorflow as tf


def check_tokens_alone(model, tokens, start, end, tolerance, *constants):
    """Positions from `start` to `end`, one by one, equal the whole; returns the whole.

    Args:
        model: a causal language model with a cache.
        tokens: integer array `(batch, length)`.
        start: integer. The positions before it fill the cache.
        end: integer.
        tolerance: float.
        *constants: further arguments of `call_with_cache`.
    """
    whole = tf.function(model, autograph=False)(tokens)
    _, cache = model.build_cache(tokens, start)
    for position in range(start, end):
        token = tokens[:, position : position + 1]
        outputs, _, cache = model.call_with_cache(token, cache, position, *constants)
        np.testing.assert_allclose(outputs[:, 0], whole[:, position], atol=tolerance)
    return whole


def check_greedy_generation(model, tokens, mask):
    """Generated tokens are the likeliest after the whole prefix, row by row.

    Args:
        model: a causal language model that was compiled with the greedy sampler.
        tokens: integer array `(batch, length)`.
        mask: integer array of the same shape: 1 at the positions of the prompts.
    """
    prompt = tokens * mask
    inputs = {"token_ids": prompt, "padding_mask": mask}
    generated = model.generate(inputs, stop_token_ids=None)
    expected, solve = prompt.copy(), tf.function(model)
    for position in range(mask.sum(axis=1).min(), mask.shape[1]):
        best = np.argmax(solve(expected)[:, position - 1], axis=-1)
        is_free = mask[:, position] == 0
        expected[is_free, position] = best[is_free]
    np.testing.assert_array_equal(generated["token_ids"], expected)
    assert np.all(generated["padding_mask"])
