"""Train a language model whose hidden states are an equilibrium, and generate text."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import deq_keras

keras.utils.set_random_seed(0)
root = Path(__file__).resolve().parents[1]
text = "".join(
    path.read_text("utf-8") for path in sorted(root.glob("docs/guides/*.md"))
)

tokenizer = deq_keras.tokenizers.CharacterTokenizer.learn([text])
backbone = deq_keras.models.DEQTransformerBackbone(
    vocabulary_size=tokenizer.vocabulary_size(),
    hidden_dim=64,
    num_heads=4,
    intermediate_dim=128,
    memory_length=32,
)
causal_lm = deq_keras.models.DEQTransformerCausalLM(
    backbone, deq_keras.models.DEQTransformerCausalLMPreprocessor(tokenizer)
)

# Sixteen texts in parallel, read in segments of 32 characters. Each segment sees the
# states of the segment before.
tokens = np.asarray(tokenizer(text))
streams = tokens[: len(tokens) // 16 * 16].reshape(16, -1).astype("int32")
starts = range(0, 32 * 120, 32)
segments = tf.data.Dataset.from_tensor_slices(
    (
        np.stack([streams[:, start : start + 32] for start in starts]),
        np.stack([streams[:, start + 1 : start + 33] for start in starts]),
    )
)
model = deq_keras.models.NextTokenLossModel(causal_lm)
model.compile(keras.optimizers.Adam(3e-3, clipnorm=1.0))
model.fit(segments.map(model.examples), epochs=2, shuffle=False, verbose=2)

# A new character is solved alone, with the keys and values of the characters before it.
causal_lm.compile(sampler="top_k")
print(causal_lm.generate("The solver ", max_length=80))
