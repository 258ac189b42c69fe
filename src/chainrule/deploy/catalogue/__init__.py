"""A catalogue of components in an OCI registry: publish images with their interface, and find them.

push_image      push an image, and describe it; a version that breaks callers is refused
Catalogue       the components below one prefix of a registry
CatalogueEntry  one version of a component: its interface, owner and image
CatalogueField  one field of its inputs or outputs
Query           what components are searched by
PushedImage     what came of a push
Reference       the name of an image: registry, repository, tag or digest

Modules, in reading order:

    _entries    what is known of one version, and what is asked of it
    _catalogue  where that is kept in the registry
    _push       from an image on this machine to an entry
"""

from chainrule.deploy._registry import Reference
from chainrule.deploy.catalogue._catalogue import Catalogue
from chainrule.deploy.catalogue._entries import CatalogueEntry, CatalogueField, Query
from chainrule.deploy.catalogue._push import PushedImage, push_image

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "CatalogueField",
    "PushedImage",
    "Query",
    "Reference",
    "push_image",
]
