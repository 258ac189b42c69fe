"""Package a program as a typed, differentiable component."""
