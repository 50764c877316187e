"""What the library promises of its costs, on two processors in float32.

The promise of a change that makes something slower is broken here first.
"""

_TRANSFORMER, _CONV, _TINY = "transformer_layer", "conv_block", "tiny_mlp"

# Largest cost of a solve over its evaluations, by workload, solver and budget.
SOLVE = {
    (_TRANSFORMER, "anderson"): {6: 1.10, 12: 1.10, 30: 1.10},
    (_TRANSFORMER, "broyden"): {6: 1.20, 12: 1.25, 30: 1.40},
    (_CONV, "anderson"): {6: 1.20, 12: 1.20, 30: 1.20},
    (_CONV, "broyden"): {6: 1.30, 12: 1.50, 30: 1.80},
    (_TINY, "fixed_point_iteration"): {12: 1.2},
    (_TINY, "anderson"): {12: 3.0},
    (_TINY, "broyden"): {12: 3.0},
}

# Largest cost of a training step over its ideal, by workload and solver.
TRAIN = {
    (_TRANSFORMER, "anderson"): 1.10,
    (_TRANSFORMER, "broyden"): 1.25,
    (_CONV, "anderson"): 1.20,
    (_CONV, "broyden"): 1.50,
}

# The state of the other one is too small to be seen in a process's memory.
MEMORY_WORKLOADS = (_TRANSFORMER, _CONV)

# Largest growth of peak memory from the smallest to the largest budget: as a share, and
# for Broyden in states an evaluation.
FLAT_MEMORY = 0.02
FLAT_MEMORY_SOLVERS = ("fixed_point_iteration", "anderson")
BROYDEN_STATES = 1.0

# Least speedup of mixed_bfloat16, and largest angle of its gradient in degrees.
PRECISION_SPEEDUP = 1.8
PRECISION_ANGLE = 5.0
