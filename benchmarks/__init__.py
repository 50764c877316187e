"""Benchmarks of the library, which are not installed: `python -m benchmarks.solvers`.

Each module measures one subject, and `--help` lists its measurements. What they share,
and what whole models need, is in `training.costs`. Run them from the root of a
checkout, on a quiet machine.
"""
