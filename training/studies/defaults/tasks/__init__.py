"""The tasks of the study, one file for each or for some that are alike."""

from .blobs import BLOBS
from .chain import CHAIN
from .digits import DIGITS_DENSE, DIGITS_POOLED, DIGITS_POSITIONS
from .flood import FLOOD
from .gated import GATED
from .grids import FIELD, GROUPS
from .regression import REGRESSION
from .seen_before import SEEN_BEFORE
from .sequences import ADDITION, PARITY, PERMUTATIONS
from .sorting import SORTING
from .tabular import TABULAR_GATED, TABULAR_LEAKY, TABULAR_NORMALIZED

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
}
