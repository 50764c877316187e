"""The published architectures.

Sizes: Bai et al. (2019), tables 2 and 3, and the TrellisNets that they name
(`locuslab/trellisnet`), whose dropout rates are taken too: the DEQ's are not published.
None has weights in Keras' format.
"""

# Name -> description, arguments of the backbone.
_PRESETS = {
    "deq_trellisnet_ptb": (
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
    "deq_trellisnet_wikitext103": (
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

# As KerasHub lists them.
PRESETS = {
    name: {"metadata": {"description": description}}
    for name, (description, _) in _PRESETS.items()
}


def backbone_arguments(preset, load_weights):
    """Returns the arguments of the backbone of a preset.

    Raises:
        ValueError: If weights are asked for.
    """
    if load_weights:
        raise ValueError(
            f"The preset '{preset}' is an architecture without weights. Pass "
            "load_weights=False, or load a checkpoint of the authors with "
            "deq_keras.converters.locuslab.load_deq_trellisnet. Received: "
            "load_weights=True."
        )
    return dict(_PRESETS[preset][1])
