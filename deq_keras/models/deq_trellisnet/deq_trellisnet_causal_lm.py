"""The language model on a DEQ-TrellisNet."""

import keras
from keras import ops

from deq_keras.models.deq_trellisnet.deq_trellisnet_backbone import (
    DEQTrellisNetBackbone,
)
from deq_keras.models.deq_trellisnet.deq_trellisnet_causal_lm_preprocessor import (
    DEQTrellisNetCausalLMPreprocessor,
)
from deq_keras.models.incremental_generation import IncrementalGeneration
from deq_keras.models.trellis_causal_lm import TrellisCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTrellisNetCausalLM(IncrementalGeneration, TrellisCausalLM):
    """Language model that predicts the next token from a TrellisNet's equilibrium.

    A `DEQTrellisNetBackbone` with an `AdaptiveSoftmax` on its hidden states, or a
    `MixtureSoftmax`. Outputs are log-probabilities, which are logits whose softmax is
    the distribution itself.

    `generate()` is incremental: each new token is solved alone, against the few
    positions before it that the taps of the cell reach.

    With a `memory_length`, consecutive batches of `fit` and `evaluate` are consecutive
    segments of the same texts, as those of a `DEQTransformerCausalLM`.

    Args:
        backbone: `DEQTrellisNetBackbone`.
        preprocessor: `keras_hub.models.CausalLMPreprocessor`, or `None` for inputs
            that are token ids already. Defaults to `None`.
        tie_weights: Boolean. Whether the table of the softmax is that of the
            embedding. Defaults to `True`.
        num_experts: Positive integer. Number of softmaxes that are mixed. Defaults to
            `1`, a single one.
        expert_dropout: Float in `[0, 1)`. See `dropout_rate` of `MixtureSoftmax`.
            Defaults to `0.0`.
        compile: Boolean. Whether to compile with KerasHub's defaults. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.
        head_dtype: Dtype or policy of the softmax. Defaults to `None`, the backbone's.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`, with
            or without a `"padding_mask"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.

    Raises:
        ValueError: If embedding and softmax are tied and of different sizes.

    Example:

    >>> backbone = DEQTrellisNetBackbone(
    ...     vocabulary_size=100, hidden_dim=8, intermediate_dim=16)
    >>> model = DEQTrellisNetCausalLM(backbone)
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1909.01377), section 4.
    """

    backbone_cls = DEQTrellisNetBackbone
    preprocessor_cls = DEQTrellisNetCausalLMPreprocessor

    def call_with_cache(self, token_ids, cache, cache_update_index, constants=None):
        """Solves one new token against the tokens before it.

        Args:
            token_ids: Integer tensor `(batch, 1)`.
            cache: Dict of `"hidden"`, `"cell"` and `"inputs"`, tensors
                `(batch, positions, channels)` of the positions before that the cell's
                taps reach.
            cache_update_index: Without effect.
            constants: Optional. `TrellisCell.constants()`.

        Returns:
            Tuple of the log-probabilities `(batch, 1, vocabulary_size)`, the hidden
            states `(batch, 1, hidden_dim)` and the cache with the token as its last
            position.
        """
        del cache_update_index
        embedded = self.backbone.token_embedding(token_ids)
        hidden, new = self._solve(embedded, cache, constants)
        cache = {
            name: ops.concatenate([cache[name][:, 1:], new[name]], axis=1)
            for name in cache
        }
        return self.softmax(hidden), hidden, cache

    def build_cache(self, token_ids, length):
        """See `IncrementalGeneration`; the cache is that of `call_with_cache`."""
        batch, max_length = ops.shape(token_ids)
        # XLA must know all shapes; elsewhere a short prompt costs less.
        width = max_length if getattr(self, "jit_compile", False) else length + 1
        is_prompt = ops.broadcast_to(ops.arange(width) <= length, (batch, width))
        embedded = self.backbone.token_embedding(token_ids[:, :width])
        empty = self._empty_cache(batch, embedded)
        hidden, new = self._solve(embedded, empty, mask=is_prompt)
        cache = {
            name: ops.take(
                ops.concatenate([empty[name], new[name]], axis=1),
                ops.arange(empty[name].shape[1]) + length,
                axis=1,
            )
            for name in empty
        }
        hidden = ops.pad(hidden, ((0, 0), (0, max_length - width), (0, 0)))
        return hidden, cache

    def generation_constants(self, max_length):
        del max_length
        return self.backbone.deq.cell.constants()

    def _empty_cache(self, batch, embedded):
        cell = self.backbone.deq.cell
        reach = cell.kernel_size - 1
        shapes = {
            "hidden": (batch, reach * cell.dilation_rate, cell.units),
            "cell": (batch, cell.cell_shift, cell.units),
            "inputs": (batch, reach, embedded.shape[-1]),
        }
        return {
            name: ops.zeros(shape, embedded.dtype) for name, shape in shapes.items()
        }

    def _solve(self, embedded, cache, constants=None, mask=None):
        """Returns the hidden states, and what later positions see of these."""
        deq = self.backbone.deq
        inputs = {"inputs": embedded, "memory": cache}
        if constants is not None:
            inputs["constants"] = constants
        # `deq.solve` would also check inputs that come from outside.
        problem = deq.problem(injection=deq.inject(inputs), mask=mask)
        state = deq.solver.solve(problem, deq.request(problem)).value
        return deq.cell.features(state), {**state, "inputs": embedded}

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """See `keras_hub.models.Task.from_preset`, and that of the backbone."""
        if preset in cls.backbone_cls.presets:
            return cls(cls.backbone_cls.from_preset(preset, load_weights), **kwargs)
        return super().from_preset(preset, load_weights, **kwargs)
