"""The tasks of the study, in files by the shape of their inputs."""

from .graphs import DISTANCES
from .grids import (
    BLOBS,
    DIGITS_DENSE,
    DIGITS_POOLED,
    DIGITS_POSITIONS,
    FIELD,
    FLOOD,
    GROUPS,
)
from .sequences import (
    ADDITION,
    BRACKETS,
    CHAIN,
    PARITY,
    PERMUTATIONS,
    SEEN_BEFORE,
    SORTING,
)
from .vectors import (
    GATED,
    REGRESSION,
    TABULAR_GATED,
    TABULAR_GRU,
    TABULAR_LEAKY,
    TABULAR_NORMALIZED,
)

TASKS = {
    "digits_pooled": DIGITS_POOLED,
    "digits_positions": DIGITS_POSITIONS,
    "digits_dense": DIGITS_DENSE,
    "sorting": SORTING,
    "regression": REGRESSION,
    "parity": PARITY,
    "blobs": BLOBS,
    "gated": GATED,
    "seen_before": SEEN_BEFORE,
    "chain": CHAIN,
    "addition": ADDITION,
    "flood": FLOOD,
    "permutations": PERMUTATIONS,
    "tabular_gated": TABULAR_GATED,
    "tabular_leaky": TABULAR_LEAKY,
    "tabular_normalized": TABULAR_NORMALIZED,
    "field": FIELD,
    "groups": GROUPS,
    "brackets": BRACKETS,
    "tabular_gru": TABULAR_GRU,
    "distances": DISTANCES,
}
