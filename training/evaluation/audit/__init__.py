"""Audits whether a model has an equilibrium: measurements and a verdict."""

from .audit import BUDGETS, Audit, audit
from .group import Group, read_problems
from .group_measurement import GroupMeasurement
from .model_file import Audited, of_layer, opened

__all__ = [
    "BUDGETS",
    "Audit",
    "Audited",
    "Group",
    "GroupMeasurement",
    "audit",
    "of_layer",
    "opened",
    "read_problems",
]
