"""Memory and time of steps, and the tables of the papers that have them."""
