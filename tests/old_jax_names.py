"""A pytest plugin for an older JAX: names that the tests use, where they were before."""

import jax
import jax.experimental
import jax.export  # a submodule that `import jax` did not import

if not hasattr(jax, "enable_x64"):
    jax.enable_x64 = jax.experimental.enable_x64
