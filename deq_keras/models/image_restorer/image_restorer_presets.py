"""Trained models."""

PRESETS = {}
