"""Audits whether a model has an equilibrium: measurements, figures, a verdict."""

from .audit import BUDGETS, Audit, audit
from .group import Group, read_problems
from .group_measurement import GroupMeasurement
from .model_file import Audited, assembled, of_layer, opened
from .page import write_page

__all__ = [
    "BUDGETS",
    "Audit",
    "Audited",
    "Group",
    "GroupMeasurement",
    "assembled",
    "audit",
    "of_layer",
    "opened",
    "read_problems",
    "write_page",
]
