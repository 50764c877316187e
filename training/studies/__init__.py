"""Studies: many small models, trained and compared to answer one question.

One folder each, which `training.registry` finds.
"""
