"""Benchmarks of the library, which are not installed: `python -m benchmarks.solvers`.

Each module measures one subject, and `--help` lists its measurements. `training.costs`
has what they share, and the measurements of whole models. Run them from the root of a
checkout, on a quiet machine.
"""
