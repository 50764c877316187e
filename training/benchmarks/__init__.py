"""Benchmarks of the library; `deq-keras benchmark NAME` runs `NAME.main`."""
