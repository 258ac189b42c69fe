"""Components in OpenMDAO models, and OpenMDAO models as components.

component       a component as an explicit or implicit component of OpenMDAO
from_problem    an OpenMDAO problem as a component with total derivatives

Modules, in reading order:

_component   from a component to OpenMDAO
_problem     from an OpenMDAO problem to a component
"""

from chainrule.openmdao._component import component
from chainrule.openmdao._problem import from_problem

__all__ = ["component", "from_problem"]
