"""One measured request to a server with OpenAI's API, streamed."""

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from headrace.core.errors import HeadraceError

_DATA = b"data:"
_DONE = b"[DONE]"


class Target(Struct, frozen=True, kw_only=True):
    """What to ask for, and where."""

    url: str
    """Base address, such as http://127.0.0.1:8000; a trailing /v1 is the same."""
    model: str
    is_chat: bool
    output_len: int
    """max_tokens of each request."""
    ignore_eos: bool
    """Sent with each request, so that every answer has output_len tokens; not every server knows the field."""
    temperature: float
    api_key: str | None = None

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, prompt: str, max_tokens: int, *, is_stream: bool) -> dict[str, Any]:
        """Return the body of a request."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": self.temperature}
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.is_chat else {"prompt": prompt}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


class Record(Struct, kw_only=True):
    """What was seen of one request; times are seconds since the load began."""

    started: float
    ended: float = 0.0
    token_times: list[float] = []
    """When each event with text came."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the server's usage says; of a server that doesn't, the number of events."""
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to the first text."""
        return self.token_times[0] - self.started

    @property
    def e2e_s(self) -> float:
        """Time to the end."""
        return self.ended - self.started

    @property
    def mean_itl_s(self) -> float:
        """Mean time between tokens; 0 of a single one."""
        between = max(1, self.output_tokens - 1)
        return (self.token_times[-1] - self.token_times[0]) / between

    def gaps_s(self) -> list[float]:
        """Return the times between events with text."""
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta = field(default_factory=_Delta)
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Model(Struct):
    id: str


class _ModelList(Struct):
    data: list[_Model]


class _Event(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class BenchFailed(HeadraceError):
    """A server gave no usable answer."""


_decode_event = msgspec.json.Decoder(_Event).decode


def open_session(url: str, api_key: str | None) -> aiohttp.ClientSession:
    """Return a session of paths below a server's address, or its Unix socket; to be closed.

    url: such as http://127.0.0.1:8000 or unix:PATH; a trailing /v1 is the same.
    """
    url = url.rstrip("/").removesuffix("/v1")
    is_unix = url.startswith("unix:")
    return aiohttp.ClientSession(
        "http://localhost" if is_unix else url,
        connector=aiohttp.UnixConnector(url.removeprefix("unix:"), limit=0)
        if is_unix
        else aiohttp.TCPConnector(limit=0, force_close=True),  # some servers close connections that they offer to keep
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=aiohttp.ClientTimeout(total=None),
    )


class Client:
    """Sends requests to one target, whose model is filled in if it has none. Use it as `async with`."""

    def __init__(self, target: Target, clock_start: float) -> None:
        self.target = target
        self._start = clock_start
        self._session = open_session(target.url, target.api_key)

    async def __aenter__(self) -> "Client":
        try:
            if not self.target.model:
                self.target = replace(self.target, model=await self.first_model())
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def now(self) -> float:
        """Return seconds since the load began."""
        return time.perf_counter() - self._start

    async def first_model(self) -> str:
        """Return the first name that the server lists. Raises BenchFailed."""
        try:
            async with self._session.get("/v1/models") as response:
                await _check(response)
                return msgspec.json.decode(await response.read(), type=_ModelList).data[0].id
        except (aiohttp.ClientError, msgspec.MsgspecError, IndexError) as error:
            raise BenchFailed(f"{self.target.url} lists no model: {type(error).__name__}: {error}") from None

    async def count_prompt_tokens(self, prompt: str) -> int:
        """Ask for one token, to learn how many tokens a prompt has. Raises BenchFailed."""
        body = self.target.body(prompt, 1, is_stream=False)
        try:
            async with self._session.post(self.target.path, json=body) as response:
                await _check(response)
                usage = msgspec.json.decode(await response.read(), type=_Event).usage
        except (aiohttp.ClientError, msgspec.MsgspecError) as error:
            raise BenchFailed(f"{self.target.url}: {type(error).__name__}: {error}") from None
        if usage is None or not usage.prompt_tokens:
            raise BenchFailed(f"{self.target.url} tells no usage, so that prompts can't be made to length")
        return usage.prompt_tokens

    async def measure(self, prompt: str) -> Record:
        """Send one request and read its stream; whatever goes wrong is in the record's error."""
        record = Record(started=self.now())
        try:
            await self._read(record, self.target.body(prompt, self.target.output_len, is_stream=True))
        except (aiohttp.ClientError, msgspec.MsgspecError, BenchFailed) as error:
            record.error = str(error) or type(error).__name__
        record.ended = self.now()
        return record

    async def _read(self, record: Record, body: dict[str, Any]) -> None:
        usage: _Usage | None = None
        is_complete = False
        async with self._session.post(self.target.path, json=body) as response:
            await _check(response)
            async for line in _events(response):
                if line == _DONE:
                    is_complete = True
                    break
                event = _decode_event(line)
                if event.error is not None:
                    raise BenchFailed(f"the stream failed: {event.error}")
                if any(choice.text or choice.delta.content for choice in event.choices):
                    record.token_times.append(self.now())
                usage = event.usage or usage
                is_complete |= any(choice.finish_reason for choice in event.choices)
        if not is_complete:
            raise BenchFailed("the stream ended without [DONE] and without a finish_reason")
        if not record.token_times:
            raise BenchFailed("the answer has no text")
        record.prompt_tokens = usage.prompt_tokens if usage else 0
        record.output_tokens = usage.completion_tokens if usage else len(record.token_times)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise BenchFailed(f"status {response.status}: {(await response.text())[:300]}")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the data of each event, the terminator as well."""
    async for line in response.content:
        if line.startswith(_DATA):
            yield line[len(_DATA) :].strip()
