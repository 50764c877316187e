"""Experiments that `deq-keras train` runs, by the `experiment` key of a config.

`training.registry` finds every module and folder. A small experiment is one module. A
large one is a folder with `schema` (the config), `build` (the model) and `job` (data,
training and evaluation).
"""
