"""Components on Kubernetes: manifests for servers of an image.

KubernetesDeployment   what is deployed, and how
manifests              its objects, as `kubectl apply` takes them
to_yaml, write_folder  the objects as one YAML file, or as a folder for `kubectl apply -k`
pinned_image           the reference of an image by its digest

Nothing here talks to a cluster; a registry is asked for the digest of an image. No manifest contains a
secret: tokens, keys and passwords are named, and the cluster holds them.

Modules, in reading order:

    _settings    what is deployed, and the checks of it
    _manifests   the objects, one function each
    _writing     objects as YAML, and the reference of an image by its digest
"""

from chainrule.deploy.kubernetes._manifests import manifests
from chainrule.deploy.kubernetes._settings import KubernetesDeployment
from chainrule.deploy.kubernetes._writing import pinned_image, to_yaml, write_folder

__all__ = ["KubernetesDeployment", "manifests", "pinned_image", "to_yaml", "write_folder"]
