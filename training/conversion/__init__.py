"""Export of trained models, and import of published weights."""
