"""How a missing derivative endpoint follows from another or from `apply`.

What the endpoints are is described in `chainrule._endpoints`. Modules, in reading order
    _layout         paths as rows and columns: named arrays as long vectors, Jacobian blocks as a matrix
    _derive         one endpoint from another
    _stencils       finite-difference formulas and step sizes as data
    _sampler        evaluating a program around a point and taking differences
    _sparsity       where a Jacobian can be non-zero
    _differences    every endpoint from `apply` alone, by finite differences
    _implicit       endpoints of outputs that solve an equation, by the implicit function theorem
"""
