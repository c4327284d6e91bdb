"""
The HTTP client: one place for time-outs, trust, credentials, retries and errors.

    HttpCaller("https://host:6443", trust=trust(ca_file=…), token=…)
    BlockingCaller(…)      the same for commands, without an event loop

Both are httpx2 underneath: HTTP/1.1, or HTTP/2 on demand. Proxies and `~/.netrc` are not read from
the environment: our calls stay within an installation.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

import httpx2
import msgspec

from bidplane.errors import ApiError, Unavailable, UserError, api_error

_CONNECT_SECONDS = 10.0
_KEPT = 20  # idle connections
Headers = Mapping[str, str] | list[tuple[bytes, bytes]]
Token = str | Callable[[], str]


class NoAnswer(Unavailable):
    """No whole answer came; whether the request was carried out is unknown."""

    timed_out = False


class UnreadableUrl(UserError):
    """The address of a call cannot be read."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """A whole answer. The names of `headers` are in lower case."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def accepted(self) -> HttpAnswer:
        """Return the answer itself; raise `ApiError` if it is a refusal."""
        if self.code >= 400:
            raise refusal_in(self.code, self.body)
        return self


def refusal_in(code: int, body: bytes) -> ApiError:
    """Return the error that a refused request was answered with, as a Status or in other words."""
    try:
        status = msgspec.json.decode(body)
        return api_error(code, status.get("reason") or "", status.get("message") or "")
    except (msgspec.MsgspecError, AttributeError):
        return api_error(code, "", body.decode(errors="replace")[:500] or f"HTTP {code}")


def trust(
    *,
    ca_file: str | None = None,
    ca_data: str | None = None,
    certificate: tuple[str, str] | None = None,
) -> ssl.SSLContext:
    """
    Return whom a client trusts: these authorities, or the system's without any. `certificate` names
    the files of the client's own certificate and key.
    """
    context = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def trust_anybody() -> ssl.SSLContext:
    """Return a context that verifies nothing, for servers that are known by their address."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _Bearer(httpx2.Auth):
    """Adds the present bearer token to each request."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response]:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request


def _auth(token: Token) -> _Bearer | None:
    if not token:
        return None
    return _Bearer(token if callable(token) else lambda: token)


@contextmanager
def _our_errors() -> Iterator[None]:
    """Raise httpx2's errors as ours."""
    try:
        yield
    except httpx2.RequestError as error:
        failure = NoAnswer(str(error) or type(error).__name__)
        failure.timed_out = isinstance(error, httpx2.TimeoutException)
        raise failure from error
    except httpx2.InvalidURL as error:
        raise UnreadableUrl(str(error)) from error


class AnswerStream:
    """An answer whose body is read as it comes: `async with await caller.open(…) as stream`."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.code = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def __aenter__(self) -> AnswerStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._response.aclose()

    async def read(self) -> bytes:
        """Return the rest of the body."""
        with _our_errors():
            return await self._response.aread()

    async def accepted(self) -> AnswerStream:
        """Return the stream itself; raise `ApiError` if it is a refusal."""
        if self.code >= 400:
            raise refusal_in(self.code, await self.read())
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, not decompressed; raise `NoAnswer` when it breaks off."""
        with _our_errors():
            async for chunk in self._response.aiter_raw():
                yield chunk

    async def lines(self) -> AsyncIterator[str]:
        """Yield the body's lines, without their ends."""
        with _our_errors():
            async for line in self._response.aiter_lines():
                yield line


class HttpCaller:
    """
    An HTTP client. A relative URL is below `base`; `seconds` bounds each wait for bytes, and a
    call that cannot connect is tried `retries` more times.
    """

    def __init__(
        self,
        base: str = "",
        *,
        trust: ssl.SSLContext | None = None,
        token: Token = "",
        headers: Mapping[str, str] | None = None,
        seconds: float | None = 30.0,
        retries: int = 0,
        http2: bool = False,
    ) -> None:
        """`http2`: speak nothing else, without TLS too, as gRPC does."""
        transport = httpx2.AsyncHTTPTransport(
            verify=trust if trust is not None else True,
            http1=not http2,
            http2=http2,
            trust_env=False,
            retries=retries,
            # A stream keeps its connection: streams must not block other requests.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_KEPT),
        )
        self._seconds = seconds
        self._http = httpx2.AsyncClient(
            base_url=base,
            transport=transport,
            auth=_auth(token),
            headers=dict(headers or {}),
            timeout=_bounds(seconds),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> HttpCaller:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def call(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Headers | None = None,
        body: bytes | None = None,
        seconds: float | None = None,
    ) -> HttpAnswer:
        """Send a request and return its whole answer, refusals too; raise `NoAnswer`."""
        bounds = _bounds(self._seconds if seconds is None else seconds)
        with _our_errors():
            response = await self._http.request(
                method, url, params=params, headers=headers, content=body, timeout=bounds
            )
        return HttpAnswer(response.status_code, response.headers, response.content)

    async def open(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        headers: Headers | None = None,
        body: bytes | None = None,
        idle_seconds: float | None = None,
    ) -> AnswerStream:
        """
        Send a request and return its answer once its head is there; the caller closes it.
        `idle_seconds` bounds the silence between two chunks; None does not.
        """
        with _our_errors():
            request = self._http.build_request(
                method,
                url,
                params=_query(params),
                headers=headers,
                content=body,
                timeout=_bounds(idle_seconds),
            )
            return AnswerStream(await self._http.send(request, stream=True))


class BlockingCaller:
    """The client of commands, which have no event loop."""

    def __init__(
        self,
        base: str = "",
        *,
        trust: ssl.SSLContext | None = None,
        token: Token = "",
        seconds: float = 30.0,
    ) -> None:
        self._http = httpx2.Client(
            base_url=base,
            verify=trust if trust is not None else True,
            auth=_auth(token),
            timeout=seconds,
            trust_env=False,
        )

    def __enter__(self) -> BlockingCaller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HttpAnswer:
        """Send a request and return its whole answer, refusals too; raise `NoAnswer`."""
        with _our_errors():
            response = self._http.request(method, url, params=params, content=body)
        return HttpAnswer(response.status_code, response.headers, response.content)

    def lines(
        self, method: str, url: str, *, params: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """Yield the lines of an answer as they come; raise `ApiError` if it is a refusal."""
        with (
            _our_errors(),
            self._http.stream(method, url, params=params, timeout=None) as response,
        ):
            if response.status_code >= 400:
                raise refusal_in(response.status_code, response.read())
            yield from response.iter_lines()


def _query(
    params: Mapping[str, str] | Sequence[tuple[str, str]] | None,
) -> httpx2.QueryParams | None:
    """Return a query as httpx2 takes it. None keeps the URL's own; anything else replaces it."""
    if params is None:
        return None
    return httpx2.QueryParams(tuple(params.items() if isinstance(params, Mapping) else params))


def _bounds(seconds: float | None) -> httpx2.Timeout:
    """Return the time-outs of a call: to connect, and between two bytes."""
    connect = _CONNECT_SECONDS if seconds is None else min(seconds, _CONNECT_SECONDS)
    return httpx2.Timeout(seconds, connect=connect)
