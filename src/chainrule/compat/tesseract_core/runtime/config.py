"""Settings. Each component has its own; `get_config` is about the component whose code is running."""

from chainrule.compat.tesseract_core.runtime._settings import (
    RuntimeConfig,
    get_config,
    override_config,
    snapshot_config,
    update_config,
)

__all__ = ["RuntimeConfig", "get_config", "override_config", "snapshot_config", "update_config"]
