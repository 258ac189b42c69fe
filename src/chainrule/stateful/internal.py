"""What other packages of this project use of `stateful`; no promise to users.

TRAINABLE    the mask of what is trained by default
join         join paths
key_path     a JAX key path in our path grammar
params_of    path → parameter of a tree, each parameter once
replicate    a copy of a tree's modules with something else for every parameter
select       path → parameter of what a mask selects in a tree
"""

from chainrule.stateful._masks import TRAINABLE, select
from chainrule.stateful._walk import join, key_path, params_of, replicate

__all__ = ["TRAINABLE", "join", "key_path", "params_of", "replicate", "select"]
