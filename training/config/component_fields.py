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
REGULARIZERS = ("contraction", "jacobian", "residual")
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


def normalized(name):
    """Returns the name of a class without underscores and capitals."""
    return name.replace("_", "").lower()


def name_and_arguments(config):
    """Returns the class name of a component and the dict of its arguments."""
    if isinstance(config, str):
        return config, {}
    arguments = dict(config)
    return arguments.pop("class_name"), arguments


def component(names, plug_ins=True, nullable=False):
    """Returns the metadata of a field that holds a component.

    Args:
        names: Tuple of the possible names.
        plug_ins: Boolean. Whether a class that Keras has registered is possible too.
            Defaults to `True`.
        nullable: Boolean. Whether null is possible. Defaults to `False`.
    """
    return {"component": names, "plug_ins": plug_ins, "nullable": nullable}


# Largest numbers of arguments, also of components in components. Other arguments have
# the default maximum, and the object checks them when it is built.
MAXIMA = {
    "max_iter": BUDGET["maximum"],
    "history": TERMS["maximum"],
    "restart": TERMS["maximum"],
    "num_terms": BUDGET["maximum"],
    "num_steps": TERMS["maximum"],
    "num_free_steps": BUDGET["maximum"],
    "max_steps": BUDGET["maximum"],
    "checkpoints": BUDGET["maximum"],
    "checkpoint_every": BUDGET["maximum"],
    "num_iterations": BUDGET["maximum"],
    "num_probes": TERMS["maximum"],
    "filters": FILTERS["maximum"],
    "groups": FILTERS["maximum"],
    "kernel_size": WINDOW["maximum"],
    "units": WIDTH["maximum"],
    "num_heads": WIDTH["maximum"],
    "num_blocks": TERMS["maximum"],
    "expansion": 1000,
}

# Metadata of fields that hold a cell: for images, monotone, and for reasoning.
CELL = component(CELLS)
MONOTONE_CELL = component(MONOTONE_CELLS, plug_ins=False)
REASONING_CELL = component(REASONING_CELLS, plug_ins=False)


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
        "solver": (solver, component(SOLVERS)),
        "gradient": (gradient, component(GRADIENTS)),
        "regularizer": (regularizer, component(REGULARIZERS, nullable=True)),
        "initial_state": (initial_state, component(INITIAL_STATES)),
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
