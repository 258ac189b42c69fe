"""A pytest plugin for an older JAX: names that the tests use, where they were before."""

import jax
import jax.experimental
import jax.export  # a submodule that `import jax` did not import
from hypothesis import HealthCheck, settings

# As in conftest.py, which is not read there: the machine is shared and noisy.
settings.register_profile(
    "chainrule",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("chainrule")

if not hasattr(jax, "enable_x64"):
    jax.enable_x64 = jax.experimental.enable_x64
