"""Runs: phases, checkpoints, variants, and the folder that they write."""
