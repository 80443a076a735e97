"""Tools to test drafters, verifiers and targets, those of others included."""
