"""Parities of every prefix of a string of bits, of strings longer than those trained.

The task of Bansal et al. (2022), "End-to-end Algorithm Synthesis with Recurrent
Networks: Logical Extrapolation Without Overthinking".
"""

from ...registry import Study
from .schema import PrefixesConfig

EXPERIMENT = Study(PrefixesConfig, "study:run")
