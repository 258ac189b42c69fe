"""`watch`: see a loop while it runs, and step through it afterwards.

A frame is what was said about one step: the cost, norms of gradients, inputs and fields. Frames are small
copies, and their number is bounded: when there are too many, every second one goes, and from then on only
every second (fourth, …) step is kept. The first and the last step always are.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from chainrule._describe import names_its_arguments
from chainrule._errors import InputError
from chainrule._notebooks import display_in_cell
from chainrule._trees import iterate_leaves
from chainrule.view._arrays import Arrays, as_numbers, norm, reduced
from chainrule.view._page import cell, frame_of, page, to_json

_log = logging.getLogger(__name__)

_FRAMES = 200
_PAUSE_S = 0.2  # between two events for one browser
_HEIGHT = 720  # of the frame in a notebook, until it knows its own


@dataclass(frozen=True, slots=True)
class WatchFrame:
    """What was recorded of one step.

    Attributes:
        number: how many steps were recorded before it.
        step: its number in the loop.
        cost: what is minimised; `None` where it was not given.
        gradients: name → Euclidean norm.
        inputs: path → array, reduced.
        fields: path → array, reduced.
    """

    number: int
    step: int
    cost: float | None
    gradients: Mapping[str, float]
    inputs: Arrays
    fields: Arrays

    def plain(self) -> dict[str, Any]:
        """The frame for a page."""
        return {name: getattr(self, name) for name in self.__slots__}


class Watch:
    """A record of a run; `chainrule.watch` makes it. Call it once per step.

    Attributes:
        title: of the page.
        url: where the page is while the `with` block runs; `None` before and after.
    """

    def __init__(self, title: str, *, max_frames: int, open_browser: bool | None) -> None:
        if max_frames < 3:
            raise InputError(
                f"Expected max_frames of at least 3; found {max_frames}.", code="bad_option"
            )
        self.title = title
        self.url: str | None = None
        self._most = max_frames
        self._open_browser = open_browser
        self._frames: list[WatchFrame] = []
        self._stride = 1
        self._count = 0
        self._note = ""
        self._first_odd: dict[str, Any] | None = None
        # Guards what is kept. Threads of the server wait on it for the next frame.
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._server: _LiveServer | None = None
        self._has_opened = False
        self._cell: Callable[[str], object] | None = None

    @property
    def frames(self) -> tuple[WatchFrame, ...]:
        """What was kept, in the order of the steps."""
        with self._changed:
            return tuple(self._frames)

    def __call__(
        self,
        step: int | None = None,
        *,
        cost: Any = None,
        gradients: Any = None,
        inputs: Any = None,
        fields: Any = None,
    ) -> None:
        """Record a step.

        Numbers and arrays may be of NumPy, JAX or torch, or Python's. What cannot be recorded is said on the
        page and in the log; it does not end the loop.

        Args:
            step: its number; one more than before when it is not given.
            cost: what is minimised.
            gradients: name → gradient, as an array or as nested data; the norm of each is recorded. A
                gradient that is not a mapping is called `gradient`.
            inputs: the variables, as an array or as nested data. Up to 12 numbers are curves over the
                steps; larger arrays are shown like fields.
            fields: name → array. An array with one axis is reduced to at most 512 means of neighbours,
                one with two to 64 × 64, and of one with more the middle slice is taken.

        Raises:
            InputError: the step is not a whole number.
        """
        try:
            number = self._count if step is None else operator.index(step)
        except TypeError as error:
            raise InputError(
                f"The step is a whole number; found {type(step).__name__}. "
                "The cost has its name: w(cost=value).",
                code="bad_option",
            ) from error
        try:
            frame = WatchFrame(
                self._count, number, *_measured(cost, gradients), _arrays("inputs", inputs),
                _arrays("fields", fields),
            )  # fmt: skip
        except Exception as error:
            self._note = f"Step {number} was not recorded: {type(error).__name__}: {error}"
            _log.warning("%s", self._note)
        else:
            self._keep(frame)

    def callback(self, intermediate_result: Any) -> None:
        """Record what a solver hands to its callback.

        Pass it as `callback=w.callback` to `chainrule.minimize`, `chainrule.least_squares` and
        `scipy.optimize.minimize`. Methods of scipy that only hand over the variables (such as TNC) give
        frames without a cost.

        Args:
            intermediate_result: a step of `chainrule.minimize`, scipy's result so far, or the variables.
        """
        found = intermediate_result
        cost = getattr(found, "fun", getattr(found, "value", None))
        gradient = getattr(found, "jac", getattr(found, "gradient", None))
        inputs = getattr(found, "x", found if cost is None else None)
        named = {} if gradient is None else {"gradient": gradient}
        self(getattr(found, "evaluation", None), cost=cost, gradients=named, inputs=inputs)

    def verbose(self, **found: tuple[str, Any]) -> None:
        """Record the steps of a solver of optimistix.

        Pass it as `verbose=w.verbose`. The cost is the loss at the point that the step has evaluated, and the
        inputs are that point. Steps arrive while the compiled solver runs; `jax.effects_barrier()` waits for
        the last.

        Args:
            **found: what the solver says of a step: name → (words, value).
        """
        # Imported here: a loop without JAX can be watched, too.
        import jax

        values = {name: value for name, (_, value) in found.items()}

        def record(cost: Any, inputs: Any) -> None:
            self(cost=cost, inputs=inputs)

        jax.debug.callback(record, values.get("loss_this_step"), values.get("y"))

    def __enter__(self) -> Watch:
        """Begin to serve the page."""
        self._ended.clear()
        try:
            self._server = _LiveServer(self._live_page, self._events)
        except OSError as error:
            self._note = f"The live page cannot be served: {error}"
            _log.warning("%s", self._note)
            return self
        self.url = self._server.url
        self._cell = display_in_cell(frame_of(f"{self.url}/", self.title, _HEIGHT))
        self._has_opened = self._cell is None and self._show(self.url)
        return self

    def __exit__(self, *_: object) -> None:
        """Send the last step to the page and end its server."""
        with self._changed:
            self._ended.set()
            self._changed.notify_all()
        if self._server is not None:
            self._server.close(is_expected=self._has_opened)
        self.url = self._server = None
        if self._cell is not None:
            self._cell(self.html())  # the page is gone, and the notebook keeps the run
            self._cell = None

    def save(self, path: str | Path) -> Path:
        """Write the run as one HTML file that needs nothing else.

        Args:
            path: ends in `.html`.

        Returns:
            The path.

        Raises:
            InputError: another ending.
        """
        path = Path(path)
        if path.suffix != ".html":
            raise InputError(
                f"A run is saved as .html, but the file is called {path.name!r}.",
                code="picture_format",
            )
        path.write_text(self._document(), encoding="utf-8")
        return path

    def html(self) -> str:
        """The run for a page or a notebook: a frame with the saved run in it."""
        return cell(self._document(), self.title, _HEIGHT)

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        where = f", live at {self.url}" if self.url else ""
        steps = "1 step" if self._count == 1 else f"{self._count} steps"
        return f"<Watch {self.title!r}: {steps}, {len(self._frames)} kept{where}>"

    def _keep(self, frame: WatchFrame) -> None:
        with self._changed:
            # Kept are the multiples of the stride, and the newest step. Doubling the stride leaves every
            # second of them: a run of n steps, of which k are kept, is thinned out about log₂(n / k) times.
            if self._frames and self._frames[-1].number % self._stride:
                self._frames.pop()  # it was kept as the last one only
            self._frames.append(frame)
            if len(self._frames) > self._most:
                self._stride *= 2
                regular = [f for f in self._frames[:-1] if f.number % self._stride == 0]
                self._frames = [*regular, frame]
            self._count += 1
            if self._first_odd is None:
                self._first_odd = _odd_value(frame)
            self._changed.notify_all()

    def _news(self, seen: int) -> tuple[int, dict[str, Any]]:
        """How many steps there are, and what a page needs that has seen so many of them."""
        with self._changed:
            news = {
                "frames": [frame.plain() for frame in self._frames if frame.number >= seen],
                "kept": [frame.number for frame in self._frames],
                "count": self._count,
                "note": self._note,
                "firstOdd": self._first_odd,
            }
            return self._count, news

    def _document(self) -> str:
        _, news = self._news(0)
        return page("watch.js", self.title, {"title": self.title, "isLive": False, **news})

    def _live_page(self) -> str:
        _, news = self._news(0)
        nothing = {**news, "frames": [], "kept": []}
        return page("watch.js", self.title, {"title": self.title, "isLive": True, **nothing})

    def _events(self) -> Iterator[bytes]:
        """All that is new, not too often, and one event at the end."""
        seen = 0
        while True:
            is_last = self._ended.is_set()
            there, news = self._news(seen)
            if there > seen:
                yield _event("news", to_json(news))
                seen = there
            if is_last:
                break
            self._wait_for_more(seen)
            self._ended.wait(_PAUSE_S)
        yield _event("end", b"{}")

    def _wait_for_more(self, seen: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended.is_set() or self._count > seen)

    def _show(self, url: str) -> bool:
        """Open a tab where there is a screen; else say on standard error where the page is."""
        is_wanted = self._open_browser
        if is_wanted is None:
            is_wanted = sys.stdout.isatty() and _has_screen()
        try:
            if is_wanted and webbrowser.open(url):
                return True
        except webbrowser.Error as error:
            _log.info("No browser was opened: %s", error)
        # In a file or a pipe, too: the page cannot be found otherwise.
        console = Console(stderr=True)
        console.print(f"Watch the run at {url}", highlight=False, soft_wrap=True)
        return False


@names_its_arguments
def watch(
    title: str = "A run", *, max_frames: int = _FRAMES, open_browser: bool | None = None
) -> Watch:
    """Watch a loop: its cost, gradients, inputs and fields, live in a browser and afterwards.

    Inside the `with` block a page on this machine follows the run: in the cell of a notebook, which keeps the
    run afterwards, or in a tab. `save` writes the run to one file. Without `with` nothing is served.

    Args:
        title: of the page.
        max_frames: how many steps are kept; a longer run is thinned out evenly, with its first and its last.
        open_browser: whether to open a tab; by default where standard output is a terminal and there is a
            screen. Otherwise the address is a line on standard error. In a notebook no tab is opened.

    Raises:
        InputError: fewer than three frames.

    Example:
        >>> import chainrule
        >>> x = 1.0
        >>> with chainrule.watch("Newton's method for the square root of two") as w:
        ...     for step in range(5):
        ...         w(step, cost=(x**2 - 2) ** 2, inputs={"x": x})
        ...         x = x / 2 + 1 / x
        >>> w
        <Watch "Newton's method for the square root of two": 5 steps, 5 kept>
    """
    return Watch(title, max_frames=max_frames, open_browser=open_browser)


def _has_screen() -> bool:
    return sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def _measured(cost: Any, gradients: Any) -> tuple[float | None, dict[str, float]]:
    named = gradients if isinstance(gradients, Mapping) else {"gradient": gradients}
    norms = {str(name): norm(tree) for name, tree in named.items() if tree is not None}
    number = None if cost is None else as_numbers(cost)
    return None if number is None else float(number.reshape(())), norms


def _arrays(kind: str, tree: Any) -> Arrays:
    """Path → small copy of every array in nested data."""
    found = {}
    for segments, leaf in () if tree is None else iterate_leaves(tree):
        array = as_numbers(leaf)
        if array is not None and array.size:
            name = ".".join(f"[{s}]" if isinstance(s, int) else str(s) for s in segments)
            found[name or kind] = reduced(array)
    return found


def _odd_value(frame: WatchFrame) -> dict[str, Any] | None:
    """The first number of a frame that is not finite."""
    norms = ((f"The gradient of {name}", norm) for name, norm in frame.gradients.items())
    for name, value in (("The cost", frame.cost), *norms):
        if value is not None and not math.isfinite(value):
            said = "NaN" if math.isnan(value) else "infinite"
            return {"name": name, "value": said, "step": frame.step}
    return None


# --- A page that follows a run: a small server on loopback, with server-sent events.
#
# Only a browser on this machine reaches it. A page of another site that the browser has open may try, too, by
# letting its own name point here; the name then stands in `Host` or `Origin`, and the request is refused.

_PATIENCE_S = 5.0
"""How long a browser may take to read, or to come at all when a tab was opened for it."""
_HEADERS = {
    "Cache-Control": "no-store",
    # A notebook on this machine shows the page in a cell.
    "Content-Security-Policy": "frame-ancestors http://127.0.0.1:* http://localhost:*",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _LiveServer(ThreadingHTTPServer):
    """Serves a page and the events that follow, until it is closed.

    Args:
        page: the document.
        events: what a browser gets from its arrival on, one text after the other, until the run has ended.
    """

    daemon_threads = True  # a run that ends without `with` ends its process, too

    def __init__(self, page: Callable[[], str], events: Callable[[], Iterator[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page, self.events = page, events
        self.visited = threading.Event()
        self._readers: list[threading.Thread] = []
        port = self.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._thread = threading.Thread(
            target=self.serve_forever, name="chainrule-watch", daemon=True
        )
        self._thread.start()

    def read(self, write: Callable[[bytes], Any]) -> None:
        """Send events to one browser until there are no more."""
        self._readers.append(threading.current_thread())
        self.visited.set()
        for each in self.events():
            write(each)

    def close(self, *, is_expected: bool) -> None:
        """End when every browser has got the last event.

        Args:
            is_expected: a tab was opened; its browser may still be on the way.
        """
        if is_expected:
            self.visited.wait(_PATIENCE_S)
        self.shutdown()
        self._thread.join()
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error of the run."""
        _log.debug("A request of the live page failed.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _LiveServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        if not self._is_from_here():
            self.send_error(403, "Only pages of this machine are answered")
        elif self.path == "/":
            self._start("text/html; charset=utf-8")
            self.wfile.write(self.server.page().encode())
        elif self.path == "/events":
            self._start("text/event-stream")
            self.server.read(self.wfile.write)
        else:
            self.send_error(404)

    def _is_from_here(self) -> bool:
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in self.server.hosts and (
            origin is None or origin.removeprefix("http://") in self.server.hosts
        )

    def _start(self, media_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _event(name: str, data: bytes) -> bytes:
    """A server-sent event; JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
