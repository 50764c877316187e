"""What is measured of a trained model, its table and its figures."""
