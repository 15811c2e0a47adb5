"""The tracer for OpenTelemetry, behind the extra ``otel``.

Only OpenTelemetry's API is needed; without a provider every span is a no-op. An app sets up providers and
exporters as for any library, tierlog's own processes by the standard environment variables. Attributes of
tierlog's own get the prefix ``tierlog.``; names with a dot are semantic conventions and stay as they are.
``opentelemetry`` is imported with the first tracer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...storage_backends.base.errors import ConfigError, TierlogError
from .logging import get_logger

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context

_log = get_logger("tracing")
EXPORTER = "OTEL_TRACES_EXPORTER"
"""The environment variable that turns tracing on in tierlog's processes."""
_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"
_SERVICE = "OTEL_SERVICE_NAME"
_NO_FAILURE = 1000
"""Above every status of HTTP."""


def opentelemetry_tracing(provider: trace.TracerProvider | None = None) -> OpenTelemetryTracing:
    """A tracer for ``open_store(span=...)`` and ``connect(span=...)``. ``provider`` defaults to the
    process's.

    Raises ``ConfigError`` if the extra is not installed.
    """
    try:
        from opentelemetry.trace import get_tracer
    except ImportError as error:
        raise ConfigError('tracing needs OpenTelemetry: install "tierlog[otel]"') from error

    return OpenTelemetryTracing(get_tracer("tierlog", tracer_provider=provider))


def tracing_of_process(instance: str) -> OpenTelemetryTracing | None:
    """The tracer of one of tierlog's processes, if the environment asks for one; the SDK is configured by the
    environment too.

    ``instance`` names the process. If something is not installed, a warning is logged and the process serves
    without traces.
    """
    wanted = os.environ.get(EXPORTER, "").strip().lower()
    if wanted in ("", "none") or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None

    try:
        tracing = opentelemetry_tracing()
        _configure_sdk(wanted, instance)
    except ConfigError as error:
        _log.warning("tracing_disabled", exporter=wanted, reason=str(error))
        return None

    _log.info("tracing", exporter=wanted)
    return tracing


def _configure_sdk(exporter: str, instance: str) -> None:
    """By the entry point that ``opentelemetry-distro`` declares for the SDK: what it calls is private."""
    from importlib.metadata import entry_points  # only tracing needs it

    found = list(
        entry_points(
            group="opentelemetry_configurator",
            name=os.environ.get("OTEL_PYTHON_CONFIGURATOR", "configurator"),
        )
    )
    if not found:
        raise ConfigError(
            f"{EXPORTER} is set but OpenTelemetry's SDK is not installed: install opentelemetry-distro "
            f"and the exporter {exporter!r}"
        )

    try:
        with _environment(_named_process(instance)):
            found[0].load()().configure()
    except Exception as error:  # foreign code: any error means a wrong environment
        raise ConfigError(
            f"OpenTelemetry's SDK cannot be configured from the environment: {error}"
        ) from error


def _named_process(instance: str) -> dict[str, str]:
    """The variables that name this process in traces, unless the environment names it."""
    resource = os.environ.get(_RESOURCE, "")
    if "service.instance.id=" not in resource:
        resource = ",".join(part for part in (resource, f"service.instance.id={instance}") if part)
    return {_SERVICE: os.environ.get(_SERVICE, "tierlog"), _RESOURCE: resource}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set the variables for the body only: hosts that this process starts later must not inherit its name."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Span:
    """One span, recorded or not."""

    __slots__ = ("_fails_from", "raw", "trace_id")

    def __init__(self, raw: trace.Span, fails_from: int) -> None:
        """``fails_from``: the lowest status that counts as a failure."""
        self.raw = raw
        self._fails_from = fails_from
        self.trace_id = f"{raw.get_span_context().trace_id:032x}" if raw.is_recording() else ""

    def rename(self, name: str) -> None:
        self.raw.update_name(name)

    def answered(self, status: int, attributes: Mapping[str, object] | None = None) -> None:
        self.raw.set_attributes(_named({**(attributes or {}), "http.response.status_code": status}))
        if status >= self._fails_from:
            self._fail(str(status), None)

    def failed(self, error: BaseException) -> None:
        kind = error.code if isinstance(error, TierlogError) else type(error).__qualname__
        if isinstance(error, Exception):
            self._fail(kind, str(error))
        else:
            self.raw.set_attribute("error.type", kind)  # a cancellation is not a failure

    def _fail(self, kind: str, description: str | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.raw.set_attribute("error.type", kind)
        self.raw.set_status(Status(StatusCode.ERROR, description))


class OpenTelemetryTracing:
    """A ``Tracing`` over one of OpenTelemetry's tracers."""

    def __init__(self, tracer: trace.Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        # Kept, so that spans need no import of their own.
        self._trace = trace
        self._root = Context()
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def __call__(
        self, name: str, attributes: Mapping[str, object], links: Sequence[object] = ()
    ) -> Iterator[Span | None]:
        """A span whose links are all unrecorded is not recorded: the callers' sampling decides."""
        recorded = _recorded(links)
        if links and not recorded:
            yield None
            return

        context = self._root if links else None
        with self._entered(name, self._trace.SpanKind.INTERNAL, attributes, context, recorded) as span:
            yield span

    @contextmanager
    def server(
        self, name: str, attributes: Mapping[str, object], headers: Mapping[str, str]
    ) -> Iterator[Span]:
        # Not a child of the span that is current in the server's task: only the client knows the parent. By
        # OpenTelemetry's conventions a 4xx is the client's failure and not the server's.
        context = self._propagator.extract(headers, self._root)
        with self._entered(name, self._trace.SpanKind.SERVER, attributes, context, fails_from=500) as span:
            yield span

    @contextmanager
    def client(
        self,
        name: str,
        attributes: Mapping[str, object],
        headers: MutableMapping[str, str],
        links: Sequence[object] = (),
    ) -> Iterator[Span]:
        context, recorded = self._root if links else None, _recorded(links)
        # A request for one call alone belongs into that call's trace.
        if len(recorded) == 1:
            context, recorded = self._trace.set_span_in_context(recorded[0].raw, self._root), []
        with self._entered(
            name, self._trace.SpanKind.CLIENT, attributes, context, recorded, fails_from=400
        ) as span:
            self._propagator.inject(headers)
            yield span

    @contextmanager
    def _entered(
        self,
        name: str,
        kind: trace.SpanKind,
        attributes: Mapping[str, object],
        context: Context | None,
        links: Sequence[Span] = (),
        fails_from: int = _NO_FAILURE,
    ) -> Iterator[Span]:
        targets = [self._trace.Link(each.raw.get_span_context()) for each in links]
        raw = self._tracer.start_span(
            name, context=context, kind=kind, attributes=_named(attributes), links=targets
        )
        span = Span(raw, fails_from)
        # `failed` records errors instead, by their code, and cancellations too.
        with self._trace.use_span(
            raw, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield span
            except BaseException as error:
                span.failed(error)
                raise


def _recorded(links: Sequence[object]) -> list[Span]:
    """Each span once, in order."""
    return list(dict.fromkeys(link for link in links if isinstance(link, Span) and link.trace_id))


def _named(attributes: Mapping[str, object]) -> dict[str, Any]:
    return {
        name if "." in name else f"tierlog.{name}": value
        for name, value in attributes.items()
        if value is not None
    }
