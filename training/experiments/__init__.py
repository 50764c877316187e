"""Experiments: what `deq-keras train` does with a config, by its `experiment` key.

One folder each, which `training.registry` finds: `schema` (what a config may say),
`build` (the model), `job` (how it is compiled, fed and examined) and `measure`.
"""
