#!/usr/bin/env bash
# A layer of a `Sequential` whose precision comes from a `DTypePolicyMap` has another
# precision after `save` and `load_model`: the map finds policies by the path of a layer,
# and the path is `model/inner` in the model that was built and `inner` in the loaded one.
#
# Packages: keras 3.15.1, tensorflow 2.21.0 (Python 3.11, Linux, CPU), seen on 2026-11-30.
# Expected: the loaded layer computes in the precision of the saved one.
# Seen: bfloat16 becomes float32 for the key "model/inner", and float32 becomes bfloat16
#   for the key "inner". No error or warning is given. A `Functional` model keeps it.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow==2.21.0
cat > "$folder/load.py" << 'END'
import sys

import keras


def precisions(key, is_sequential):
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    policies[key] = "bfloat16"
    layer = keras.layers.Dense(4, name="inner", dtype=policies)
    inputs = keras.Input((3,))
    if is_sequential:
        model = keras.Sequential([inputs, layer], name="model")
    else:
        model = keras.Model(inputs, layer(inputs), name="model")
    model.save(f"{sys.argv[1]}/model.keras")
    loaded = keras.saving.load_model(f"{sys.argv[1]}/model.keras")
    return layer.compute_dtype, loaded.get_layer("inner").compute_dtype


found = [
    precisions("model/inner", True),
    precisions("inner", True),
    precisions("inner", False),
]
print("precision before and after loading:", found)
assert found == [
    ("bfloat16", "float32"),
    ("float32", "bfloat16"),
    ("bfloat16", "bfloat16"),
], found
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/load.py" "$folder"
