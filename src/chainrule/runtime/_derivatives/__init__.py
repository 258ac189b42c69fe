"""How a missing derivative endpoint follows from another or from `apply`.

What the endpoints are is described in `chainrule._endpoints`. Modules, in reading order
    _layout         paths as rows and columns: named arrays as long vectors, blocks as a matrix, patterns
    _derive         one endpoint from another
    _stencils       finite-difference formulas and step sizes as data
    _sampler        evaluating a program around a point and taking differences
    _differences    every endpoint from `apply` alone, by finite differences
    _implicit       endpoints of outputs that solve an equation, by the implicit function theorem
"""
