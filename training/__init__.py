"""Pipelines that train, evaluate, diagnose and export deep equilibrium models."""
