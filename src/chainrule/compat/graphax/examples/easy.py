"""Small examples of the literature."""

from chainrule.elimination import examples as _native

__all__ = ["Helmholtz", "Lighthouse", "Simple"]

Helmholtz = _native.helmholtz
Lighthouse = _native.lighthouse
Simple = _native.simple
