"""The tasks of the study, one file for each or for some that are alike."""

from .blobs import BLOBS
from .chain import CHAIN
from .digits import DIGITS_DENSE, DIGITS_POOLED, DIGITS_POSITIONS
from .flood import FLOOD
from .gated import GATED
from .regression import REGRESSION
from .seen_before import SEEN_BEFORE
from .sequences import ADDITION, PARITY, PERMUTATIONS
from .sorting import SORTING

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
}
