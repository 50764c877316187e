"""The DEQ-Transformer of the reference (PyTorch, locuslab/deq, version 2)."""

import re

from deq_keras.converters.locuslab.arguments import check_dtype
from deq_keras.converters.locuslab.checkpoint import (
    assign,
    cleaned,
    layer_variables,
    without_ones,
)
from deq_keras.converters.locuslab.deq_transformer_architecture import (
    backbone_arguments,
)
from deq_keras.models import DEQTransformerBackbone, DEQTransformerCausalLM

# Entries that follow from the architecture or copy other entries.
_IGNORED = ("pos_emb.inv_freq", "func_copy.", "deq.", "deqback.")
# In 2019, the projections were parameters, not layers with a `weight`.
_PROJECTION = re.compile(r"(word_emb\.emb|crit\.out)_projs\.\d+")


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
    state_dict = {_as_of_2021(name): array for name, array in state_dict.items()}
    arguments, ties = backbone_arguments(state_dict, architecture)
    backbone = DEQTransformerBackbone(
        **arguments,
        solver=solver,
        gradient=gradient,
        regularizer=regularizer,
        dtype=dtype,
    )
    model = DEQTransformerCausalLM(backbone, **ties)
    assign(_variables(model), state_dict, _as_keras, _as_reference)
    return model


def _as_of_2021(name):
    return f"{name}.weight" if _PROJECTION.fullmatch(name) else name


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


def _is_table(name):
    return "emb_layers" in name or "out_layers" in name or "cluster" in name


def _is_kernel(name):
    return name.endswith((".weight", ".weight_v")) and not _is_table(name)


def _as_keras(name, array):
    """Returns an array in Keras' layout: transposes kernels (out, in), or (out, in, 1)
    of convolutions, to (in, out)."""
    if name.endswith(".weight_g"):
        return without_ones(array, 1)
    return without_ones(array, 2).T if _is_kernel(name) else array


def _as_reference(name, shape):
    return tuple(reversed(shape)) if _is_kernel(name) else tuple(shape)
