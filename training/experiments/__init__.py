"""Experiments: what `deq-keras train` does with a config, by its `experiment` key.

Each module has `run(config, directory)`, with the validated config and a
`training.work_directory.WorkDirectory`. It is imported only when it is run.
"""
