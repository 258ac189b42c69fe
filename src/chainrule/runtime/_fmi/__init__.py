"""FMUs as components: programs with the functional mock-up interface (FMI 2 and 3).

In reading order:

    _open           `from_fmu`: which component is made of an FMU
    _description    what modelDescription.xml says, and the schemas that follow from it
    _instances      instances of an FMU: their life, their variables, their state
    _rates          x' = f(t, x, u, p) of a model-exchange FMU, with products of its Jacobian
    _steps          one evaluation of the rates, or one co-simulation step, as a component
    _tables         inputs over time
    _simulations    whole simulations as a component

FMPy loads the binaries and has the functions of the standard. The integration is ours: FMPy refreshes inputs
that change with time at output times only.
"""
