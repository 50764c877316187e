#!/usr/bin/env bash
# The ONNX file that tf2onnx makes of `tf.math.unsorted_segment_sum` fails on zero values, where
# TensorFlow returns zeros: a graph without edges cannot be passed to a graph network.
#
# Packages: tf2onnx 1.17.0, onnx 1.23.2, onnxruntime 1.32.0, tensorflow 2.21.0 (Python 3.11,
#   Linux, CPU), seen on 2026-11-30.
# Expected: the sums of no values are zeros, as in TensorFlow and in its LiteRT file.
# Seen: equal sums for three values and for one; for none, ONNX Runtime raises an error in a
#   node `ConstantOfShape`, whose shape is negative.
# Fails if a later run sees something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet \
    tf2onnx==1.17.0 onnx==1.23.2 onnxruntime==1.32.0 tensorflow==2.21.0
cat > "$folder/segments.py" << 'END'
import sys

import numpy as np
import onnxruntime
import tensorflow as tf
import tf2onnx

signature = [tf.TensorSpec([None, 2], name="values"), tf.TensorSpec([None], tf.int32, "ids")]
sums = tf.function(
    lambda values, ids: tf.math.unsorted_segment_sum(values, ids, 4),
    input_signature=signature,
)
path = sys.argv[1]
tf2onnx.convert.from_function(sums, signature, opset=18, output_path=path)
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
for count in (3, 1, 0):
    values, ids = np.ones((count, 2), "float32"), np.zeros(count, "int32")
    expected = sums(values, ids).numpy()
    try:
        found = session.run(None, {"values": values, "ids": ids})[0]
        equal = np.array_equal(found, expected)
    except Exception as error:
        equal = False
        print(f"{count} values: {type(error).__name__} {str(error)[-60:].strip()}")
        assert "shape.Size() must be >= 0" in str(error)
    else:
        print(f"{count} values: equal to TensorFlow: {equal}")
    assert equal == (count > 0)
END
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/segments.py" "$folder/sums.onnx"
