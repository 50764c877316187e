"""Trained models into other formats, and the weights of others into ours."""
