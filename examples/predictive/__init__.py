"""Predictive coding beside backpropagation: the same networks, data and numbers of steps."""
