#!/usr/bin/env bash
# `keras.config.set_floatx` does not change the precision of new layers once any layer was
# created: the first one fixes the global dtype policy.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: a layer that is created after `set_floatx("float64")` computes in float64.
# Seen: only in a process without a layer. Otherwise it computes in float32, without a
#   warning, while `keras.config.floatx()` returns "float64".
#   `set_dtype_policy("float64")` works in both.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/layer.py" << 'END'
import sys

import keras

if "after" in sys.argv:
    keras.layers.Dense(1)
keras.config.set_floatx("float64")
print(keras.config.floatx(), keras.layers.Dense(1).compute_dtype, end=" ")
keras.config.set_dtype_policy("float64")
print(keras.layers.Dense(1).compute_dtype)
END
export TF_CPP_MIN_LOG_LEVEL=3
first=$("$folder/venv/bin/python" "$folder/layer.py")
after=$("$folder/venv/bin/python" "$folder/layer.py" after)
echo "floatx, a new layer, and one after set_dtype_policy:"
echo "in a process without a layer: $first"
echo "after another layer: $after"
test "$first" = "float64 float64 float64"
test "$after" = "float64 float32 float64"
