"""Text of components and servers for a terminal: control characters are written out.

A component, a server or a container may print escape sequences. On an operator's screen they could move the
cursor, hide lines, retitle the window or, in some terminals, paste a command.
"""

from __future__ import annotations

# Controls of ASCII and of Latin-1 but newline and tab, separators that some terminals take for newlines, and
# marks that reverse the order in which text is shown.
_HIDDEN = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    0x061C,
    *(0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
# JSON that is written in ASCII has no controls but the last one, 0x7F: with `\u` it is the same JSON.
_SHOWN = {code: f"\\x{code:02x}" if code < 0x7F else f"\\u{code:04x}" for code in _HIDDEN}


def visible(text: str) -> str:
    r"""Text without control characters: they are written out, a return is a new line.

    JSON stays the same JSON.

    Example:
        >>> visible("half \x1b[2J done\r\n")
        'half \\x1b[2J done\n'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_SHOWN)
