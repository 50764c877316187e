"""Reads the architecture of a DEQ-Transformer from the shapes of its weights."""

import numpy as np

from deq_keras.converters.locuslab.arguments import (
    check_count,
    check_size,
    check_text,
    checked,
    integer,
    list_of,
)
from deq_keras.converters.locuslab.checkpoint import count, shape
from deq_keras.core.checks import check_boolean, check_rate

_TABLE = "word_emb.emb_layers.{}.weight"
_DEFAULTS = {
    "pre_lnorm": False,
    "local_size": 0,
    "mem_len": 0,
    "dropout": 0.0,
    "dropatt": 0.0,
}
_CHECKS = {
    "n_token": check_size,
    "n_head": check_size,
    "d_model": check_size,
    "d_head": check_size,
    "d_embed": check_size,
    "d_inner": check_size,
    "div_val": check_size,
    "tie_weights": check_boolean,
    "tie_projs": list_of(check_boolean),
    "wnorm": check_boolean,
    "cutoffs": list_of(check_count),
    "pre_lnorm": check_boolean,
    "local_size": integer(0),
    "mem_len": integer(0),
    "dropout": check_rate,
    "dropatt": check_rate,
    # Constructor arguments of the reference (PyTorch, locuslab/deq) that do not affect
    # the function.
    "n_layer": integer(0),
    "eval_n_layer": integer(0),
    "tgt_len": integer(0),
    "pretrain_steps": integer(0),
    "load": check_text,
}
# The reference replaces 0 and None by this value.
_DEFAULT_LOCAL_SIZE = 1000


def backbone_arguments(state_dict, architecture):
    """Returns arguments of `DEQTransformerBackbone` and of the ties of the softmax.

    Args:
        state_dict: Dict from names to arrays.
        architecture: Dict of arguments of the reference's constructor.

    Raises:
        ValueError: If an argument is unknown, invalid or contradicts the weights, or if
            weights that determine the sizes are missing.
    """
    architecture = checked(architecture, _CHECKS)
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
        num_tables = max(count(state_dict, _TABLE), 1)
        tables = [shape(state_dict, _TABLE.format(i), 2) for i in range(num_tables)]
        num_heads, head_dim = shape(state_dict, "func.dec_attn.r_w_bias", 2)
        _, units, *_ = shape(state_dict, "inject_conv.weight", 2, 3)
        (intermediate_dim,) = shape(state_dict, "func.pos_ff.ff1_net.bias", 1)
        num_clusters = _num_clusters(state_dict)
    except ValueError as error:
        raise ValueError(
            "The sizes of a DEQ-Transformer are read from "
            "word_emb.emb_layers.0.weight, func.dec_attn.r_w_bias, inject_conv.weight "
            "and func.pos_ff.ff1_net.bias. The checkpoint lacks one, or it has a wrong "
            f"rank: {error}. It holds: {', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error
    sizes, widths = zip(*tables, strict=True)
    return {
        "n_token": sum(sizes),
        "n_head": num_heads,
        "d_head": head_dim,
        "d_model": units,
        "d_inner": intermediate_dim,
        "d_embed": widths[0],
        "wnorm": "func.dec_attn.qkv_net.weight_g" in state_dict,
        "div_val": 1 if num_tables == 1 else widths[0] // widths[1],
        "cutoffs": _cutoffs(sizes, num_clusters, architecture),
        **_read_ties(state_dict, num_clusters),
    }


def _num_clusters(state_dict):
    name = "crit.cluster_bias"
    return shape(state_dict, name, 1)[0] if name in state_dict else 0


def _series(state_dict, name):
    arrays = []
    while name.format(len(arrays)) in state_dict:
        arrays.append(state_dict[name.format(len(arrays))])
    return arrays


def _cutoffs(sizes, num_clusters, architecture):
    if len(sizes) > 1:
        return [int(end) for end in np.cumsum(sizes)[:-1]]
    cutoffs = [end for end in architecture.get("cutoffs", ()) if end != sizes[0]]
    if len(cutoffs) != num_clusters:
        raise ValueError(
            f"The softmax has {num_clusters} clusters, in one table of {sizes[0]} "
            f"tokens. Give that many `cutoffs`. Received: cutoffs={cutoffs}."
        )
    return cutoffs


def _read_ties(state_dict, num_clusters):
    """Detects tied weights, which are bitwise equal in the reference."""
    pairs = [
        (_TABLE, "crit.out_layers.{}.weight"),
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
    projections += [False] * (1 + num_clusters - len(projections))
    return {"tie_weights": all(tables), "tie_projs": projections}


def _check_agreement(found, architecture):
    given = {key: architecture[key] for key in found if key in architecture}
    if "cutoffs" in given:
        ends = [end for end in given["cutoffs"] if end != found["n_token"]]
        given["cutoffs"] = ends
    # Skips ties: untied arrays can be equal, and without a projection a tie has no
    # effect.
    given = {key: given[key] for key in given if not key.startswith("tie_")}
    for name, value in given.items():
        if value != found[name] and value != -1:
            raise ValueError(
                f"The weights say {name}={found[name]}. Received: {name}={value}."
            )
