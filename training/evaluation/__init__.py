"""Measurements of trained models, with tables and figures."""
