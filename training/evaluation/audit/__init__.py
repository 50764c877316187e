"""Whether a model has an equilibrium: measurements, a page of pictures, a verdict."""

from .audit import BUDGETS, Audit, audit
from .group import Group
from .model_file import Audited, assembled, of_layer, opened
from .page import write_page
from .problem_file import read_problems

__all__ = [
    "BUDGETS",
    "Audit",
    "Audited",
    "Group",
    "assembled",
    "audit",
    "of_layer",
    "opened",
    "read_problems",
    "write_page",
]
