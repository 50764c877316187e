"""The language model on a DEQ-TrellisNet, and its preprocessor."""

from typing import Any

import keras

from deq_keras.models.deq_trellisnet.deq_trellisnet_backbone import (
    DEQTrellisNetBackbone,
)
from deq_keras.models.deq_trellisnet.deq_trellisnet_presets import PRESETS
from deq_keras.models.language import LanguageCausalLM
from deq_keras.models.language.preprocessor import TextPreprocessor


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTrellisNetCausalLMPreprocessor(TextPreprocessor):
    """Converts text to the token ids of a `DEQTrellisNetCausalLM`, and back.

    See `DEQTransformerCausalLMPreprocessor` for the arguments.

    Example:

    >>> preprocessor = DEQTrellisNetCausalLMPreprocessor(
    ...     deq_keras.tokenizers.CharacterTokenizer(["a", "b", "n"]))
    >>> inputs = preprocessor.generate_preprocess(["nab"], sequence_length=5)
    >>> preprocessor.generate_postprocess(inputs)
    ['nab']
    """

    backbone_cls = DEQTrellisNetBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTrellisNetCausalLM(LanguageCausalLM):
    """Language model that predicts the next token from a TrellisNet's equilibrium.

    A `DEQTrellisNetBackbone` with an `AdaptiveSoftmax` on its hidden states, or a
    `MixtureSoftmax`; see `LanguageCausalLM`.

    `generate()` is incremental: each step solves only the new token, with the few
    previous positions that the taps of the cell reach.

    With a `memory_length`, consecutive batches of `fit` and `evaluate` are consecutive
    segments of the same texts; see `DEQTransformerCausalLM`.

    Args:
        backbone: `DEQTrellisNetBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Raises:
        ValueError: If embedding and softmax are tied but differ in size.

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

    presets = PRESETS
    # A cache holds the hidden and cell states and the inputs that the taps reach.
    cache_axis = 1

    def cache_lengths(self, max_length: int) -> Any:
        cell = self.backbone.deq.cell
        reach = cell.kernel_size - 1
        return {
            "hidden": reach * cell.dilation_rate,
            "cell": cell.cell_shift,
            "inputs": reach,
        }

    def generation_constants(self, max_length: int) -> Any:
        return self.backbone.deq.cell.constants()

    def read_after(
        self,
        embedded: Any,
        cache: Any = None,
        num_cached: Any = None,
        constants: Any = None,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        deq = self.backbone.deq
        # An empty memory lets a text be shorter than the reach of the taps.
        inputs = {"inputs": embedded, "memory": cache or {}}
        if constants is not None:
            inputs["constants"] = constants
        # `deq.solve` would also check inputs that come from outside.
        problem = deq.problem(injection=deq.inject(inputs), mask=mask)
        state = deq.solver.solve(problem, deq.request(problem)).value
        return deq.cell.features(state), {**state, "inputs": embedded}
