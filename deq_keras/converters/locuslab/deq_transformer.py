"""The DEQ-Transformer of the reference (PyTorch, locuslab/deq, version 2)."""

import re

import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    assign,
    check_dtype,
    cleaned,
    count,
    known_arguments,
    layer_variables,
    shape,
    without_ones,
)
from deq_keras.core.checks import check_counts
from deq_keras.models import DEQTransformerBackbone, DEQTransformerCausalLM

# Entries that follow from the architecture or copy other entries.
_IGNORED = ("pos_emb.inv_freq", "func_copy.", "deq.", "deqback.")
# In 2019, the projections were parameters, not layers with a `weight`.
_PROJECTION = re.compile(r"(word_emb\.emb|crit\.out)_projs\.\d+")
_TABLE = "word_emb.emb_layers.{}.weight"
_DEFAULTS = {
    "pre_lnorm": False,
    "local_size": 0,
    "mem_len": 0,
    "dropout": 0.0,
    "dropatt": 0.0,
}
# These arguments of the reference do not affect the function.
_UNUSED_ARGUMENTS = ("n_layer", "eval_n_layer", "tgt_len", "pretrain_steps", "load")
_NAMES = (
    *_DEFAULTS,
    *("n_token", "n_head", "d_model", "d_head", "d_embed", "d_inner", "div_val"),
    *("tie_weights", "tie_projs", "wnorm", "cutoffs"),
    *_UNUSED_ARGUMENTS,
)
# The reference replaces 0 and None by this value.
_DEFAULT_LOCAL_SIZE = 1000


def load_deq_transformer(
    state_dict,
    solver="anderson",
    gradient="neumann",
    regularizer="contraction",
    dtype=None,
    **architecture,
):
    """Returns a `DEQTransformerCausalLM` with the weights of a checkpoint.

    The sizes are read from the shapes of the weights. Pass arguments that the shapes do
    not determine if they differ from the defaults of the reference: `pre_lnorm`,
    `local_size` (0 means 1000, as in the reference), `mem_len`, and `cutoffs` if
    `div_val` is 1. All other arguments are checked against the weights.

    The model deliberately differs from the reference in three points: evaluation
    returns f(z*) as hidden states, like training (reference: z*); each sample stops
    individually; and dropout of hidden states drops channels (reference: positions).

    Args:
        state_dict: Mapping from parameter names to floating-point arrays, with or
            without weight normalization, adaptive softmax and tied weights, from the
            releases of 2019 or 2021. Wrapper prefixes, such as `module.`, are removed.
        solver: See `DEQ`. Defaults to `"anderson"`.
        gradient: See `DEQ`. Defaults to `"neumann"`.
        regularizer: See `DEQ`. Defaults to `"contraction"`.
        dtype: Dtype or policy of the model. Defaults to `None`, Keras' default.
        **architecture: Arguments of the reference's `DEQTransformerLM`: `n_token`,
            `n_head`, `d_model`, `d_head`, `d_embed`, `d_inner`, `dropout`, `dropatt`,
            `tie_weights`, `tie_projs`, `div_val`, `pre_lnorm`, `wnorm`, `mem_len`,
            `local_size`, `cutoffs`. Its `n_layer`, `eval_n_layer`, `tgt_len`,
            `pretrain_steps` and `load` are ignored.

    Raises:
        ValueError: If an argument is unknown, invalid or contradicts the weights, or if
            entries of the checkpoint are missing, unexpected, not arrays, non-finite or
            of a wrong shape. The message names all of them.
    """
    check_dtype(dtype)
    state_dict = cleaned(state_dict, lambda name: name.startswith(_IGNORED))
    state_dict = {
        f"{name}.weight" if _PROJECTION.fullmatch(name) else name: array
        for name, array in state_dict.items()
    }
    arguments, ties = _backbone_arguments(state_dict, architecture)
    backbone = DEQTransformerBackbone(
        **arguments,
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    model = DEQTransformerCausalLM(backbone, **ties)
    assign(_variables(model), state_dict, _as_keras)
    return model


def _variables(model):
    """Returns all variables by the reference's names. Tied variables have several."""
    cell = model.backbone.deq.cell
    embedding, softmax = model.backbone.token_embedding, model.softmax
    variables = {
        "func.dec_attn.r_w_bias": cell.attention.content_bias,
        "func.dec_attn.r_r_bias": cell.attention.position_bias,
        **layer_variables("inject_conv", cell.injection_projection),
        **layer_variables("func.dec_attn.qkv_net", cell.attention.query_key_value),
        **layer_variables("func.dec_attn.r_net", cell.attention.position_projection),
        **layer_variables("func.dec_attn.o_net", cell.attention.output_projection),
        **layer_variables("func.pos_ff.ff1_net", cell.expansion),
        **layer_variables("func.pos_ff.ff2_net", cell.contraction),
        **_indexed("word_emb.emb_layers.{}.weight", embedding.tables),
        **_indexed("word_emb.emb_projs.{}.weight", embedding.projections),
        **_indexed("crit.out_layers.{}.weight", softmax.tables),
        **_indexed("crit.out_layers.{}.bias", softmax.biases),
        **_indexed("crit.out_projs.{}.weight", softmax.projections),
    }
    if softmax.num_clusters:
        variables["crit.cluster_weight"] = softmax.cluster_weight
        variables["crit.cluster_bias"] = softmax.cluster_bias
    return variables


def _indexed(name, variables):
    return {
        name.format(index): variable
        for index, variable in enumerate(variables)
        if variable is not None
    }


def _as_keras(name, array):
    """Returns an array in Keras' layout: transposes kernels (out, in), or (out, in, 1)
    of convolutions, to (in, out)."""
    if name.endswith(".weight_g"):
        return without_ones(array, 1)
    is_table = "emb_layers" in name or "out_layers" in name or "cluster" in name
    if is_table or not name.endswith((".weight", ".weight_v")):
        return array
    return without_ones(array, 2).T


def _backbone_arguments(state_dict, architecture):
    """Returns arguments of `DEQTransformerBackbone` and of the ties of the softmax."""
    architecture = known_arguments(architecture, _NAMES)
    if "cutoffs" in architecture:
        check_counts("cutoffs", architecture["cutoffs"], allow_empty=True)
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
        clusters = "crit.cluster_bias"
        num_clusters = (
            shape(state_dict, clusters, 1)[0] if clusters in state_dict else 0
        )
    except ValueError as error:
        raise ValueError(
            "The sizes of a DEQ-Transformer are read from "
            "word_emb.emb_layers.0.weight, func.dec_attn.r_w_bias, inject_conv.weight "
            "and func.pos_ff.ff1_net.bias. The checkpoint lacks one, or it has a wrong "
            f"rank: {error}. It holds: {', '.join(sorted(state_dict)) or 'nothing'}."
        ) from error
    # Several tables have sizes and widths that define the buckets; a single table may
    # have buckets that only `cutoffs` describes.
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
