"""Small networks."""

from chainrule.elimination import examples as _native

__all__ = ["Encoder", "Perceptron"]

Encoder = _native.encoder
Perceptron = _native.perceptron
