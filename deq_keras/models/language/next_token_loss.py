"""Training of language models that computes only the losses of the targets."""

from typing import Any

import keras

from deq_keras.core.serialization import Config
from deq_keras.metrics import Perplexity
from deq_keras.models.language.segments import SegmentReading


@keras.saving.register_keras_serializable(package="deq_keras")
class NextTokenLossModel(SegmentReading, keras.Model):
    """Trains a language model without its log-probabilities of the whole vocabulary.

    Shares the layers of a language model, and returns the loss of each target. A
    `CausalLM` can also be trained directly, but then computes an array
    `(batch, length, vocabulary_size)`: 9 GB for a batch of 56 x 150 tokens of
    WikiText-103. Here, each cluster of the softmax processes only its own tokens.

    `compile` has a loss, the sum of the weighted losses over the number of tokens, and
    a metric, `Perplexity`. As for every Keras loss, tokens of weight zero count in that
    number: without padding only, exp(loss) is the perplexity. `fit` and `evaluate` read
    consecutive batches as consecutive segments of the same texts; see `SegmentReading`.

    Args:
        causal_lm: Language model of this library, such as a `DEQTransformerCausalLM`,
            which is trained in place.
        name: String. Name of the model. Defaults to `None`.

    Call arguments:
        inputs: Dict of integer tensors `"token_ids"` and `"targets"`,
            `(batch, length)`, as `examples` returns them.

    Output shape:
        `(batch, length)`: losses in nats.

    Example:

    >>> causal_lm = deq_keras.models.DEQTransformerCausalLM(
    ...     deq_keras.models.DEQTransformerBackbone(
    ...         vocabulary_size=100, hidden_dim=16, num_heads=2, intermediate_dim=32))
    >>> model = NextTokenLossModel(causal_lm)
    >>> model.compile("adam")
    >>> segment = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    >>> x, y = NextTokenLossModel.examples(segment[:, :-1], segment[:, 1:])
    >>> sorted(model.evaluate(x, y, verbose=0, return_dict=True))[-2:]
    ['loss', 'perplexity']
    """

    def __init__(self, causal_lm: keras.Model, name: str | None = None) -> None:
        inputs = {
            key: keras.Input((None,), dtype="int32", name=key)
            for key in ("token_ids", "targets")
        }
        losses = causal_lm.token_losses(**inputs)
        super().__init__(inputs=inputs, outputs=losses, name=name)
        self.causal_lm = causal_lm

    @staticmethod
    def examples(token_ids: Any, targets: Any) -> tuple[dict[str, Any], Any]:
        """Returns the data of `fit`. Map this function over a dataset of segments."""
        return {"token_ids": token_ids, "targets": targets}, targets

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """See `keras.Model.compile`. `loss` is a function of (targets, losses)."""
        super().compile(
            optimizer=optimizer,
            loss=_pass_losses if loss is None else loss,
            weighted_metrics=[Perplexity()]
            if weighted_metrics is None
            else weighted_metrics,
            **kwargs,
        )

    def compile_from_config(self, config: Config) -> None:
        # Keras does not compile models whose `compile` has other arguments.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @property
    def segment_layer(self) -> Any:
        """The layer that remembers earlier segments."""
        return self.causal_lm.segment_layer

    def get_config(self) -> Config:
        causal_lm = keras.saving.serialize_keras_object(self.causal_lm)
        causal_lm.pop("compile_config", None)  # Only this model is trained.
        return {"name": self.name, "causal_lm": causal_lm}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        config = dict(config)
        causal_lm = keras.saving.deserialize_keras_object(config.pop("causal_lm"))
        return cls(causal_lm, **config)


@keras.saving.register_keras_serializable(package="deq_keras")
def _pass_losses(targets: Any, losses: Any) -> Any:
    del targets
    return losses
