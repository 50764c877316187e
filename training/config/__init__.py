"""Configs: reading, overrides, checks, and the fields that all schemas share."""
