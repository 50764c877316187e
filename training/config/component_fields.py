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


def component(names, plug_ins=True, nullable=False, **arguments):
    """Returns the metadata of a field that holds a component.

    Args:
        names: Tuple of the possible names.
        plug_ins: Boolean. Whether a class that Keras has registered is possible too.
            Defaults to `True`.
        nullable: Boolean. Whether null is possible. Defaults to `False`.
        **arguments: Metadata of the arguments of the component.
    """
    return {
        "component": names,
        "plug_ins": plug_ins,
        "nullable": nullable,
        "arguments": arguments,
    }


# Mixing creates a graph node for every pair of columns.
_SOLVER = component(SOLVERS, max_iter=BUDGET, history=TERMS, restart=TERMS)
_GRADIENT = component(
    GRADIENTS,
    solver={**_SOLVER, "nullable": True},
    num_terms=BUDGET,
    num_steps=TERMS,
    num_free_steps=BUDGET,
    max_steps=BUDGET,
    checkpoints=BUDGET,
    checkpoint_every=BUDGET,
)
_ESTIMATE = {"num_iterations": BUDGET, "num_probes": TERMS}
_REGULARIZER = component(REGULARIZERS, nullable=True, **_ESTIMATE)
_PREDICTOR = component(("dense",), units=WIDTH)
# A mixture must not contain another mixture.
_UNMIXED = tuple(name for name in INITIAL_STATES if name != "mixed")
_MIXTURE = {
    "elements": component(_UNMIXED, layer=_PREDICTOR),
    "max_items": TERMS["maximum"],
}
_INITIAL_STATE = component(INITIAL_STATES, layer=_PREDICTOR, initial_states=_MIXTURE)
# Metadata of fields that hold a cell: for images, monotone, and for reasoning.
CELL = component(
    CELLS,
    filters=FILTERS,
    expansion={"maximum": 1000},
    groups=FILTERS,
    kernel_size=WINDOW,
)
MONOTONE_CELL = component(MONOTONE_CELLS, plug_ins=False, units=WIDTH, filters=FILTERS)
REASONING_CELL = component(
    REASONING_CELLS,
    plug_ins=False,
    filters=FILTERS,
    units=WIDTH,
    num_heads=WIDTH,
    num_blocks=TERMS,
    expansion={"maximum": 1000},
)


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
