"""Whether a model has an equilibrium: measurements, a page of pictures, a verdict."""

from .audit import BUDGETS, Audit, audit
from .group import Group
from .page import write_page
from .verdict import Criterion, Thresholds

__all__ = [
    "BUDGETS",
    "Audit",
    "Criterion",
    "Group",
    "Thresholds",
    "audit",
    "write_page",
]
