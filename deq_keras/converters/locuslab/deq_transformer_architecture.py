"""What the shapes of a DEQ-Transformer's weights say about its architecture."""

import numpy as np

from deq_keras.converters.locuslab.checkpoint import check_known

# Arguments of the reference's constructor that say nothing about the function.
_MEANINGLESS = {"n_layer", "eval_n_layer", "tgt_len", "pretrain_steps", "load"}
_DEFAULTS = {
    "pre_lnorm": False,
    "local_size": 0,
    "mem_len": 0,
    "dropout": 0.0,
    "dropatt": 0.0,
}
_KNOWN = {
    "n_token",
    "n_head",
    "d_model",
    "d_head",
    "d_embed",
    "d_inner",
    "tie_weights",
    "tie_projs",
    "div_val",
    "wnorm",
    "cutoffs",
    *_DEFAULTS,
    *_MEANINGLESS,
}
# What 0 and None stand for in the reference.
_DEFAULT_LOCAL_SIZE = 1000


def backbone_arguments(state_dict, architecture):
    """Returns arguments of `DEQTransformerBackbone`, and of the ties of the softmax.

    Args:
        state_dict: dict of names to arrays.
        architecture: dict of arguments of the reference's constructor.

    Raises:
        ValueError: if an argument is unknown or contradicts the weights, or weights are
            missing from which the sizes are read.
    """
    check_known(architecture, _KNOWN)
    found = _read(state_dict, architecture)
    _check_agreement(found, architecture)
    chosen = {**_DEFAULTS, **architecture, **found}
    arguments = {
        "vocabulary_size": chosen["n_token"],
        "hidden_dim": chosen["d_model"],
        "num_heads": chosen["n_head"],
        "intermediate_dim": chosen["d_inner"],
        "embedding_dim": chosen["d_embed"],
        "cutoffs": tuple(chosen["cutoffs"]),
        "div_val": chosen["div_val"],
        "normalize_first": chosen["pre_lnorm"],
        "memory_length": chosen["mem_len"],
        "local_size": chosen["local_size"] or _DEFAULT_LOCAL_SIZE,
        "dropout": chosen["dropout"],
        "attention_dropout": chosen["dropatt"],
        "weight_normalization": chosen["wnorm"],
    }
    ties = {
        "tie_weights": chosen["tie_weights"],
        "tie_projections": tuple(chosen["tie_projs"]),
    }
    return arguments, ties


def _read(state_dict, architecture):
    try:
        tables = _series(state_dict, "word_emb.emb_layers.{}.weight")
        num_heads, head_dim = state_dict["func.dec_attn.r_w_bias"].shape
        units = state_dict["inject_conv.weight"].shape[1]
        intermediate_dim = state_dict["func.pos_ff.ff1_net.bias"].shape[0]
        first = tables[0]
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            "The sizes of a DEQ-Transformer are read from "
            "word_emb.emb_layers.0.weight, func.dec_attn.r_w_bias, inject_conv.weight "
            "and func.pos_ff.ff1_net.bias. "
            f"The checkpoint lacks one, or it has a wrong rank: {error}. It holds: "
            f"{', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error
    sizes = [len(table) for table in tables]
    return {
        "n_token": sum(sizes),
        "n_head": num_heads,
        "d_head": head_dim,
        "d_model": units,
        "d_inner": intermediate_dim,
        "d_embed": first.shape[1],
        "wnorm": "func.dec_attn.qkv_net.weight_g" in state_dict,
        "div_val": 1 if len(tables) == 1 else first.shape[1] // tables[1].shape[1],
        **_read_cutoffs(state_dict, sizes, architecture),
        **_read_ties(state_dict),
    }


def _series(state_dict, name):
    arrays = []
    while name.format(len(arrays)) in state_dict:
        arrays.append(state_dict[name.format(len(arrays))])
    return arrays


def _read_cutoffs(state_dict, sizes, architecture):
    if len(sizes) > 1:
        return {"cutoffs": [int(end) for end in np.cumsum(sizes)[:-1]]}
    num_clusters = len(state_dict.get("crit.cluster_bias", ()))
    cutoffs = [end for end in architecture.get("cutoffs", ()) if end != sizes[0]]
    if len(cutoffs) != num_clusters:
        raise ValueError(
            f"The softmax has {num_clusters} clusters, in one table of {sizes[0]} "
            f"tokens. Give that many `cutoffs`. Received: cutoffs={cutoffs}."
        )
    return {"cutoffs": cutoffs}


def _read_ties(state_dict):
    """What the reference tied is equal to the last bit."""
    pairs = [
        ("word_emb.emb_layers.{}.weight", "crit.out_layers.{}.weight"),
        ("word_emb.emb_projs.{}.weight", "crit.out_projs.{}.weight"),
    ]
    tables, projections = (
        [
            np.array_equal(one, other)
            for one, other in zip(
                _series(state_dict, names[0]), _series(state_dict, names[1])
            )
        ]
        for names in pairs
    )
    num_buckets = 1 + len(state_dict.get("crit.cluster_bias", ()))
    projections += [False] * (num_buckets - len(projections))
    return {"tie_weights": all(tables), "tie_projs": projections}


def _check_agreement(found, architecture):
    given = {key: architecture[key] for key in found if key in architecture}
    if "cutoffs" in given:
        ends = [end for end in given["cutoffs"] if end != found["n_token"]]
        given["cutoffs"] = ends
    # Equal arrays may be untied, and where there is no projection, a tie means nothing.
    given = {key: given[key] for key in given if not key.startswith("tie_")}
    for name, value in given.items():
        if value is not None and value != found[name] and value != -1:
            raise ValueError(
                f"The weights say {name}={found[name]}. Received: {name}={value}."
            )
