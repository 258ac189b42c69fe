"""What other packages of this project use of `stateful`; no promise to users.

TRAINABLE    the mask of what is trained by default
flatten      the leaves of a tree with their paths, nodes being leaves, and the treedef around them
is_node      whether something is a parameter, a module, or a container that belongs to one
join         join paths
key_path     a JAX key path in our path grammar
named_pairs  the parts of a module or container with their path segments
params_of    path → parameter of a tree, each parameter once
select       path → parameter of what a mask selects in a tree
"""

from chainrule.stateful._masks import TRAINABLE, select
from chainrule.stateful._nodes import is_node
from chainrule.stateful._walk import flatten, join, key_path, named_pairs, params_of

__all__ = [
    "TRAINABLE",
    "flatten",
    "is_node",
    "join",
    "key_path",
    "named_pairs",
    "params_of",
    "select",
]
