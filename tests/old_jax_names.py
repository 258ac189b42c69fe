"""A pytest plugin for an older JAX: names that the tests use, where they were before."""

import jax
import jax.experimental
import jax.export  # a submodule that `import jax` did not import
from hypothesis import HealthCheck, settings

# conftest.py is not read there. The machine is shared and noisy; fewer examples than on the usual JAX.
settings.register_profile(
    "chainrule",
    deadline=None,
    derandomize=True,
    max_examples=10,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("chainrule")

if not hasattr(jax, "enable_x64"):
    jax.enable_x64 = jax.experimental.enable_x64
