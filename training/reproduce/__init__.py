"""Reproduces tables and figures of the papers: `deq-keras reproduce NAME`.

`experiments` declares what each command runs and the published numbers. `trained`
trains a config of `configs/papers`. `results` writes the table, the numbers and the
figure.
"""
