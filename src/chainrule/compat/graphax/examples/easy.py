"""Small examples of the literature."""

from chainrule.elimination import examples as _native

__all__ = ["Helmholtz", "Hole", "Lighthouse", "Simple"]

Helmholtz = _native.helmholtz
Hole = _native.hole
Lighthouse = _native.lighthouse
Simple = _native.simple
