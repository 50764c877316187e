"""The published architectures.

Sizes: Bai et al. (2019), tables 2 and 3, and the TrellisNets that they name
(`locuslab/trellisnet`). The latter define the dropout rates; the DEQ's are unpublished.
Weights in Keras' format do not exist.
"""

from deq_keras.models.kerashub import architecture

PRESETS = {
    "deq_trellisnet_ptb": architecture(
        "24 million parameters, for Penn Treebank by words.",
        {
            "vocabulary_size": 10_000,
            "hidden_dim": 400,
            "intermediate_dim": 1000,
            "memory_length": 1,
            "token_dropout": 0.1,
            "embedding_dropout": 0.45,
            "hidden_dropout": 0.28,
            "output_dropout": 0.45,
            "weight_dropout": 0.5,
        },
    ),
    "deq_trellisnet_wikitext103": architecture(
        "180 million parameters, for WikiText-103.",
        {
            "vocabulary_size": 267_735,
            "hidden_dim": 512,
            "intermediate_dim": 1600,
            "cutoffs": (2800, 20_000, 76_000),
            "memory_length": 1,
            "embedding_dropout": 0.1,
            "hidden_dropout": 0.1,
            "output_dropout": 0.1,
        },
    ),
}
