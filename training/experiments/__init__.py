"""Experiments that `deq-keras train` runs, by the `experiment` key of a config.

Each has a folder, which `training.registry` finds, with `schema` (the config), `build`
(the model) and `job` (compilation, data and evaluation). Long measurements have a
separate `measure`.
"""
