"""The published architectures, and a small trained model.

Source: the scripts of `locuslab/deq`, as in `configs/deq_transformer`. Weights of these
in Keras' format do not exist.
"""

from deq_keras.models.kerashub import architecture, trained_preset
from deq_keras.regularizers import JacobianRegularizer

_MEDIUM = {
    "vocabulary_size": 267_735,
    "hidden_dim": 700,
    "num_heads": 10,
    "intermediate_dim": 48_000,
    "embedding_dim": 700,
    "cutoffs": (20_000, 40_000, 200_000),
    "div_val": 4,
    "memory_length": 150,
    "dropout": 0.05,
}

PRESETS = {
    "characters": trained_preset(
        "A layer of width 128, for English text by characters."
    ),
    "deq_transformer_medium_wikitext103": architecture(
        "97.7 million parameters, for WikiText-103: post-LN.", _MEDIUM
    ),
    "deq_transformer_medium_preln_wikitext103": architecture(
        "97.7 million parameters, for WikiText-103: pre-LN.",
        {
            **_MEDIUM,
            "normalize_first": True,
            "memory_length": 300,
            "dropout": 0.06,
            "attention_dropout": 0.01,
            "regularizer": JacobianRegularizer(2.0, probability=0.4),
        },
    ),
}
