"""Dataclass fields that hold a solver, gradient, regularizer, initial state or cell.

Each is a name of `deq_keras`, alone or with arguments: `{class_name: anderson,
max_iter: 12}`. Fields with `plug_ins` also accept a class that Keras has registered,
`package>Class`. See `training.config.validation` for the checks.
"""

from dataclasses import field, make_dataclass
from typing import Any

from .bounds import BUDGET, FILTERS, TERMS, WIDTH, WINDOW

SOLVERS = (
    "fixed_point_iteration",
    "aitken",
    "anderson",
    "broyden",
    "forward_backward",
    "peaceman_rachford",
    "gmres",
    "bicgstab",
)
GRADIENTS = (
    "implicit",
    "neumann",
    "phantom",
    "reversible",
    "truncated",
    "unrolled",
)
PENALTIES = ("contraction", "jacobian", "residual")
REGULARIZERS = (*PENALTIES, "residual_constraint", "spectral_radius_constraint")
INITIAL_STATES = ("cell", "learned", "mixed", "normal", "predicted", "zeros")
CELLS = ("residual_block_cell",)
MONOTONE_CELLS = (
    "monotone_dense_cell",
    "monotone_conv_cell",
    "monotone_multiscale_cell",
)
REASONING_CELLS = (
    "attention_cell",
    "automaton_cell",
    "board_cell",
    "mixer_cell",
    "recall_cell",
)

# The word of a field for the component that `DEQ` selects for its cell.
AUTO = "auto"

_SOLVER = {
    "component": SOLVERS,
    "plug_ins": True,
    "nullable": False,
    # Mixing creates a graph node for every pair of columns.
    "arguments": {"max_iter": BUDGET, "history": TERMS, "restart": TERMS},
}
_GRADIENT = {
    "component": GRADIENTS,
    "plug_ins": True,
    "nullable": False,
    "arguments": {
        "solver": {**_SOLVER, "nullable": True},
        "num_terms": BUDGET,
        "num_steps": TERMS,
        "num_free_steps": BUDGET,
        "max_steps": BUDGET,
        "checkpoints": BUDGET,
        "checkpoint_every": BUDGET,
    },
}
_PENALTY = {
    "component": PENALTIES,
    "plug_ins": True,
    "nullable": True,
    "arguments": {"num_iterations": BUDGET, "num_probes": TERMS},
}
_REGULARIZER = {
    **_PENALTY,
    "component": REGULARIZERS,
    "arguments": {**_PENALTY["arguments"], "regularizer": _PENALTY},
}
_PREDICTOR = {
    "component": ("dense",),
    "plug_ins": True,
    "nullable": False,
    "arguments": {"units": WIDTH},
}
_INITIAL_STATE = {
    "component": INITIAL_STATES,
    "plug_ins": True,
    "nullable": False,
    "arguments": {
        "layer": _PREDICTOR,
        "initial_states": {
            "elements": {
                # A mixture must not contain another mixture.
                "component": tuple(name for name in INITIAL_STATES if name != "mixed"),
                "plug_ins": True,
                "nullable": False,
                "arguments": {"layer": _PREDICTOR},
            },
            "max_items": TERMS["maximum"],
        },
    },
}
_CELL = {
    "component": CELLS,
    "plug_ins": True,
    "nullable": False,
    "arguments": {
        "filters": FILTERS,
        "expansion": {"maximum": 1000},
        "groups": FILTERS,
        "kernel_size": WINDOW,
    },
}

_MONOTONE_CELL = {
    "component": MONOTONE_CELLS,
    "nullable": False,
    "arguments": {"units": WIDTH, "filters": FILTERS},
}

_REASONING_CELL = {
    "component": REASONING_CELLS,
    "nullable": False,
    "arguments": {
        "filters": FILTERS,
        "units": WIDTH,
        "num_heads": WIDTH,
        "num_blocks": TERMS,
        "expansion": {"maximum": 1000},
    },
}


def components(
    solver="anderson",
    gradient="implicit",
    regularizer=None,
    initial_state="cell",
    alone=(),
):
    """Returns a dataclass of the components of a `DEQ` layer, for schemas to inherit.

    Args:
        solver: Default of the field `solver`.
        gradient: Default of the field `gradient`.
        regularizer: Default of the field `regularizer`, which also accepts null.
        initial_state: Default of the field `initial_state`.
        alone: Tuple of words that every field also accepts. Defaults to `()`.
    """
    fields = {
        "solver": (solver, _SOLVER),
        "gradient": (gradient, _GRADIENT),
        "regularizer": (regularizer, _REGULARIZER),
        "initial_state": (initial_state, _INITIAL_STATE),
    }
    return make_dataclass(
        "Components",
        [
            (name, Any, field(default=default, metadata={**checks, "alone": alone}))
            for name, (default, checks) in fields.items()
        ],
        frozen=True,
        kw_only=True,
    )


def cell_field():
    """Returns a dataclass field that holds a cell."""
    return field(metadata=_CELL)


def monotone_cell_field():
    """Returns a dataclass field that holds a monotone cell."""
    return field(metadata=_MONOTONE_CELL)


def reasoning_cell_field():
    """Returns a dataclass field that holds a cell that reasons."""
    return field(metadata=_REASONING_CELL)
