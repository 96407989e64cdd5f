"""/metrics: Prometheus text. Names are vLLM's with the prefix `headrace:` where the meaning is the same.

Counters and gauges of the engine are read from its scheduler at each scrape; there a request counts once per
completion. Histograms are of this server's own requests.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.ask import Ask
from headrace.core.interfaces import DraftStats, SchedulerStats
from headrace.outputs import Chunk
from headrace.stream import Streams

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "headrace:"

_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_REQUEST_SECONDS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_COUNTS = (1, 2, 5, 10, 20, 50, 100)


class Metrics:
    """Owner of one server process's registry."""

    def __init__(self, model: str, num_open: Callable[[], int]) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self._engine = EngineCollector(model)
        self._registry.register(self._engine)
        ProcessCollector(registry=self._registry)
        Gauge(f"{PREFIX}http_requests_open", "HTTP requests being answered.", registry=self._registry).set_function(
            num_open
        )
        self.first_token = self._histogram("time_to_first_token_seconds", "From submission.", _TOKEN_SECONDS)
        self.next_token = self._histogram("inter_token_latency_seconds", "Mean of a chunk's tokens.", _TOKEN_SECONDS)
        self.whole = self._histogram("e2e_request_latency_seconds", "From submission to the end.", _REQUEST_SECONDS)
        self.queued = self._histogram("request_queue_time_seconds", "Until first scheduled.", _REQUEST_SECONDS)
        self.prompt_tokens = self._histogram("request_prompt_tokens", "Of ended completions.", _TOKENS)
        self.generation_tokens = self._histogram("request_generation_tokens", "Of ended completions.", _TOKENS)
        self.n = self._histogram("request_params_n", "n of submitted prompts.", _COUNTS)
        self.max_tokens = self._histogram("request_params_max_tokens", "Of submitted prompts.", _TOKENS)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(PREFIX + name, text, ["model_name"], registry=self._registry, buckets=buckets)
        return histogram.labels(self._model)

    def text(self, stats: SchedulerStats | None) -> bytes:
        """Return the page; without stats, those of the engine are left out."""
        self._engine.stats = stats
        return generate_latest(self._registry)


class EngineCollector(Collector):
    """Turns the scheduler's stats into metrics."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.stats: SchedulerStats | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield one family per figure."""
        if self.stats is None:
            return
        stats, kv = self.stats, self.stats.kv
        yield self._gauge("num_requests_running", "Completions that hold a row.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Completions that wait for a row or blocks.", stats.num_waiting)
        used = 1 - kv.num_free / kv.num_blocks
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 1 is all.", used)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", kv.queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", kv.hits)
        yield self._counter("resume_cache_hits", "Tokens found when preempted requests came back.", kv.resume_hits)
        yield self._counter("num_preemptions", "Times a completion lost its row.", stats.preemptions)
        yield self._counter("prompt_tokens", "Of ended completions.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Of ended completions.", stats.generation_tokens)
        yield self._counter("engine_steps", "Steps computed.", stats.steps)
        yield from self._drafts(stats.drafts)
        finished = CounterMetricFamily(
            f"{PREFIX}request_success", "Ended completions.", labels=["model_name", "finished_reason"]
        )
        for reason, number in stats.finished.items():
            finished.add_metric([self._model, reason], number)
        yield finished

    def _drafts(self, drafts: DraftStats) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", "Times a row had drafts.", drafts.num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Drafts verified.", drafts.num_draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Drafts that were right.", drafts.num_accepted_tokens)
        accepted = CounterMetricFamily(
            f"{PREFIX}spec_decode_num_accepted_tokens_per_pos",
            "Drafts that were right, by their place.",
            labels=["model_name", "position"],
        )
        for position, number in enumerate(drafts.num_accepted_per_pos):
            accepted.add_metric([self._model, str(position)], number)
        yield accepted

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


class Observed:
    """Asynchronous iterator over the chunks of requests that have just been submitted, which it measures."""

    def __init__(self, metrics: Metrics, asks: Sequence[Ask], streams: Streams) -> None:
        self._metrics = metrics
        self._streams = streams
        self._submitted = time.monotonic()
        self._latest: dict[tuple[int, int], float] = {}
        """When a completion's latest tokens came, by prompt and choice."""
        for ask in asks:
            metrics.n.observe(ask.params.n)
            if ask.params.max_tokens is not None:
                metrics.max_tokens.observe(ask.params.max_tokens)

    def __aiter__(self) -> "Observed":
        return self

    async def __anext__(self) -> list[tuple[int, Chunk]]:
        ready = await self._streams.__anext__()
        now = time.monotonic()
        for prompt, chunk in ready:
            if chunk.token_ids:
                self._note_tokens((prompt, chunk.index), len(chunk.token_ids), now)
            if chunk.usage is not None:
                self._note_end(prompt, chunk, now)
        return ready

    def _note_tokens(self, choice: tuple[int, int], num_tokens: int, now: float) -> None:
        before = self._latest.get(choice)
        if before is None:
            self._metrics.first_token.observe(now - self._submitted)
        else:
            self._metrics.next_token.observe((now - before) / num_tokens)
        self._latest[choice] = now

    def _note_end(self, prompt: int, chunk: Chunk, now: float) -> None:
        assert chunk.usage is not None
        metrics = self._metrics
        metrics.whole.observe(now - self._submitted)
        metrics.prompt_tokens.observe(chunk.usage.prompt_tokens)
        metrics.generation_tokens.observe(chunk.usage.completion_tokens)
        queued_s = self._streams.streams[prompt].timings().queued_s
        if queued_s is not None:
            metrics.queued.observe(queued_s)
