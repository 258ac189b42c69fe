"""What can go wrong between a transformation and the parameters it tracks.

DefinitionError
└── TrackingError        a transformed function did what cannot be tracked; codes:
                         untracked_write, untracked_read, value_changed, structure_changed,
                         static_changed, batched_write
InputError
├── GradientError        gradients that do not belong to the parameters they are used with
└── CheckpointError      a checkpoint that does not fit the model
"""

from __future__ import annotations

from chainrule._errors import DefinitionError, InputError


class TrackingError(DefinitionError):
    """A transformed function used a parameter in a way that no transformation can track."""

    default_code = "tracking_failed"


class GradientError(InputError):
    """Gradients are missing, or belong to other parameters."""

    default_code = "gradient_missing"


class CheckpointError(InputError):
    """The entries of a checkpoint and the parameters of a model do not match."""

    default_code = "checkpoint_mismatch"
