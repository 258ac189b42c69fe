"""What other packages of this project use of `harvest`; no promise to users.

SOW            the name of the primitive that `sow` binds
is_captured    whether a capture of a tag is being traced
sown_names     what the values of a sow are called
sow_part       sow what stands for only some modes of a value
"""

from chainrule.harvest._sow import SOW, is_captured, sow_part, sown_names

__all__ = ["SOW", "is_captured", "sow_part", "sown_names"]
