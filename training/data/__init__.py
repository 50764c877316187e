"""Data to learn from: images, their segmentation, texts, reasoning."""
