"""Use components inside PyTorch: `apply_component`, the twin of `chainrule.apply_component`.

Gradients (`backward`, `torch.autograd.grad`), forward mode, and the transformations of `torch.func` (`grad`,
`vjp`, `jvp`, `jacrev`, `jacfwd`, `vmap`, `hessian`) go through the component's derivative endpoints, by the
same calculus, routes and batching that the JAX bridge uses. `_apply` has both the function and its autograd.
"""

from chainrule.torch._apply import apply_component

__all__ = ["apply_component"]
