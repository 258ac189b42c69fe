"""Derivative endpoints: what they are, and how a missing one follows from another."""
