"""The DEQ-Transformer of the reference (PyTorch, locuslab/deq, version 2)."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from deq_keras.converters.locuslab.checkpoint import (
    StateDict,
    Variables,
    assign,
    check_agreement,
    check_dtype,
    count,
    known_arguments,
    layer_variables,
    read_sizes,
    read_state_dict,
    shape,
    without_ones,
)
from deq_keras.core.checks import check_counts
from deq_keras.models import DEQTransformerBackbone, DEQTransformerCausalLM

# Entries that follow from the architecture or copy other entries.
_IGNORED = ("pos_emb.inv_freq", "func_copy.", "deq.", "deqback.")
# In 2019, the projections were parameters, not layers with a `weight`.
_PROJECTION = re.compile(r"(word_emb\.emb|crit\.out)_projs\.\d+")
_TABLE, _PROJECTIONS = "word_emb.emb_layers.{}.weight", "word_emb.emb_projs.{}.weight"
_OUT_TABLE, _OUT_PROJECTIONS = "crit.out_layers.{}.weight", "crit.out_projs.{}.weight"
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
    state_dict: Mapping[str, Any],
    solver: Any = "anderson",
    gradient: Any = "neumann",
    regularizer: Any = "contraction",
    dtype: Any = None,
    **architecture: Any,
) -> DEQTransformerCausalLM:
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
    state_dict = read_state_dict(state_dict, lambda name: name.startswith(_IGNORED))
    state_dict = {
        f"{name}.weight" if _PROJECTION.fullmatch(name) else name: array
        for name, array in state_dict.items()
    }
    architecture = known_arguments(architecture, _NAMES)
    if "cutoffs" in architecture:
        check_counts("cutoffs", architecture["cutoffs"], allow_empty=True)
    chosen = {**_DEFAULTS, **architecture, **_read(state_dict, architecture)}
    backbone = DEQTransformerBackbone(
        vocabulary_size=chosen["n_token"],
        hidden_dim=chosen["d_model"],
        num_heads=chosen["n_head"],
        intermediate_dim=chosen["d_inner"],
        embedding_dim=chosen["d_embed"],
        cutoffs=tuple(chosen["cutoffs"]),
        div_val=chosen["div_val"],
        normalize_first=chosen["pre_lnorm"],
        memory_length=chosen["mem_len"],
        local_size=chosen["local_size"] or _DEFAULT_LOCAL_SIZE,
        dropout=chosen["dropout"],
        attention_dropout=chosen["dropatt"],
        weight_normalization=chosen["wnorm"],
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    model = DEQTransformerCausalLM(
        backbone,
        tie_weights=chosen["tie_weights"],
        tie_projections=tuple(chosen["tie_projs"]),
    )
    assign(_variables(model), state_dict, _as_keras)
    return model


def _variables(model: DEQTransformerCausalLM) -> Variables:
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
    }
    for pattern, group in (
        (_TABLE, embedding.tables),
        (_PROJECTIONS, embedding.projections),
        (_OUT_TABLE, softmax.tables),
        ("crit.out_layers.{}.bias", softmax.biases),
        (_OUT_PROJECTIONS, softmax.projections),
    ):
        for index, variable in enumerate(group):
            if variable is not None:
                variables[pattern.format(index)] = variable
    if softmax.num_clusters:
        variables["crit.cluster_weight"] = softmax.cluster_weight
        variables["crit.cluster_bias"] = softmax.cluster_bias
    return variables


def _as_keras(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array in Keras' layout: transposes kernels (out, in), or (out, in, 1)
    of convolutions, to (in, out)."""
    if name.endswith(".weight_g"):
        return without_ones(array, 1)
    is_table = "emb_layers" in name or "out_layers" in name or "cluster" in name
    if is_table or not name.endswith((".weight", ".weight_v")):
        return array
    return without_ones(array, 2).T


def _read(state_dict: StateDict, architecture: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the reference that the weights determine."""
    # 1. Read the sizes.
    entries = (
        "word_emb.emb_layers.0.weight, func.dec_attn.r_w_bias, inject_conv.weight and "
        "func.pos_ff.ff1_net.bias"
    )
    with read_sizes("a DEQ-Transformer", entries, state_dict):
        num_tables = max(count(state_dict, _TABLE), 1)
        tables = [shape(state_dict, _TABLE.format(i), 2) for i in range(num_tables)]
        num_heads, head_dim = shape(state_dict, "func.dec_attn.r_w_bias", 2)
        _, units, *_ = shape(state_dict, "inject_conv.weight", 2, 3)
        (intermediate_dim,) = shape(state_dict, "func.pos_ff.ff1_net.bias", 1)
        num_clusters = 0
        if "crit.cluster_bias" in state_dict:
            (num_clusters,) = shape(state_dict, "crit.cluster_bias", 1)
    # 2. Find the buckets. Several tables have sizes and widths that define them; a
    #    single table may have buckets that only `cutoffs` describes.
    sizes, widths = zip(*tables, strict=True)
    given = dict(architecture)
    if "cutoffs" in given:
        given["cutoffs"] = [end for end in given["cutoffs"] if end != sum(sizes)]
    cutoffs = [int(end) for end in np.cumsum(sizes)[:-1]]
    if num_tables == 1:
        cutoffs = given.get("cutoffs", [])
        if len(cutoffs) != num_clusters:
            raise ValueError(
                f"The softmax has {num_clusters} clusters, in one table of {sizes[0]} "
                f"tokens. Give that many `cutoffs`. Received: cutoffs={cutoffs}."
            )
    found = {
        "n_token": sum(sizes),
        "n_head": num_heads,
        "d_head": head_dim,
        "d_model": units,
        "d_inner": intermediate_dim,
        "d_embed": widths[0],
        "wnorm": "func.dec_attn.qkv_net.weight_g" in state_dict,
        "div_val": 1 if num_tables == 1 else widths[0] // widths[1],
        "cutoffs": cutoffs,
    }
    check_agreement(
        found, {name: value for name, value in given.items() if value != -1}
    )
    # 3. Detect ties: tied weights are bitwise equal in the reference. They are not
    #    compared with arguments: untied arrays can be equal, and without a projection
    #    a tie has no effect.
    ties = []
    for pattern, other in ((_TABLE, _OUT_TABLE), (_PROJECTIONS, _OUT_PROJECTIONS)):
        number = min(count(state_dict, pattern), count(state_dict, other))
        ties.append(
            [
                np.array_equal(
                    state_dict[pattern.format(i)], state_dict[other.format(i)]
                )
                for i in range(number)
            ]
        )
    tables_are_tied, projections_are_tied = ties
    missing = 1 + num_clusters - len(projections_are_tied)
    return {
        **found,
        "tie_weights": all(tables_are_tied),
        "tie_projs": projections_are_tied + [False] * missing,
    }
