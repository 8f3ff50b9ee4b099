"""Prometheus metrics: vLLM's and llama.cpp's names where they have one for a figure, `terrace_` for what is ours.

Counters and gauges are read from the ledger and the supervisor when somebody scrapes; only distributions are kept here,
in a registry of this server's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from gateway.monitor.ledger import Ledger, RequestRecord
from gateway.monitor.sampler import Sampler
from gateway.supervisor import EngineState, Supervisor

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)

# name, what it says, buckets, the figure of a request that has ended (None: not known, not counted)
_DISTRIBUTIONS: tuple[tuple[str, str, tuple[float, ...], Callable[[RequestRecord], float | None]], ...] = (
    ("vllm:time_to_first_token_seconds", "From a request's arrival to its first token", _SECONDS, lambda r: r.first_token_s),
    ("vllm:request_queue_time_seconds", "From arrival to the engine's turn", _SECONDS, lambda r: r.queue_s),
    ("vllm:e2e_request_latency_seconds", "From arrival to the end", _SECONDS, lambda r: r.total_s),
    ("vllm:request_prefill_time_seconds", "Reading the prompt", _SECONDS, lambda r: _seconds(r.prompt_ms)),
    ("vllm:request_decode_time_seconds", "Generating", _SECONDS, lambda r: _seconds(r.decode_ms)),
    ("vllm:request_time_per_output_token_seconds", "Generating, a token", _SECONDS, lambda r: _inverse(r.tokens_per_s)),
    ("vllm:request_prompt_tokens", "Tokens of the prompt", _TOKENS, lambda r: r.prompt_tokens),
    ("vllm:request_generation_tokens", "Tokens generated", _TOKENS, lambda r: r.generated),
)

# name, what it says, figure of the totals
_COUNTERS: tuple[tuple[str, str, Callable[[Ledger], float]], ...] = (
    ("vllm:prompt_tokens", "Prompt tokens read", lambda ledger: ledger.tokens_so_far[0]),
    ("vllm:generation_tokens", "Tokens generated", lambda ledger: ledger.tokens_so_far[1]),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prompt cache", lambda ledger: ledger.totals.prompt_queries),
    ("vllm:prefix_cache_hits", "Prompt tokens taken from the prompt cache", lambda ledger: ledger.totals.reused),
    ("vllm:spec_decode_num_draft_tokens", "Drafted tokens verified", lambda ledger: ledger.totals.offered),
    ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted", lambda ledger: ledger.totals.accepted),
    ("llamacpp:prompt_tokens", "Prompt tokens read", lambda ledger: ledger.tokens_so_far[0]),
    ("llamacpp:prompt_seconds", "Time spent reading prompts", lambda ledger: ledger.totals.prompt_ms / 1000),
    ("llamacpp:tokens_predicted", "Tokens generated", lambda ledger: ledger.tokens_so_far[1]),
    ("llamacpp:tokens_predicted_seconds", "Time spent generating", lambda ledger: ledger.totals.decode_ms / 1000),
    ("terrace_requests_refused", "Requests refused because the queue was full", lambda ledger: ledger.totals.refused),
    ("terrace_expert_lookups", "Routed experts looked up in VRAM while decoding", lambda ledger: ledger.totals.lookups),
    ("terrace_expert_hits", "Routed experts served from VRAM", lambda ledger: ledger.totals.hits),
    ("terrace_expert_ram_blobs", "Experts read from RAM", lambda ledger: ledger.totals.ram_blobs),
    ("terrace_expert_file_blobs", "Experts read from the file", lambda ledger: ledger.totals.file_blobs),
    ("terrace_expert_file_megabytes", "Megabytes read from the file for experts", lambda ledger: ledger.totals.file_mb),
)


class Metrics:
    """Everything a scrape sees."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self._registry = CollectorRegistry()
        self._distributions = [
            (Histogram(name, text, tuple(self._labels), registry=self._registry, buckets=buckets), figure)
            for name, text, buckets, figure in _DISTRIBUTIONS
        ]

    def observe(self, record: RequestRecord) -> None:
        """A request has ended."""
        for distribution, figure in self._distributions:
            if (value := figure(record)) is not None:
                distribution.labels(**self._labels).observe(value)

    def watch(self, ledger: Ledger, supervisor: Supervisor, sampler: Sampler, waiting: Callable[[], int]) -> None:
        """Read these at every scrape from now on."""
        self._registry.register(_Live(self._labels, ledger, supervisor, sampler, waiting))

    def text(self) -> bytes:
        """The exposition, in CONTENT_TYPE."""
        return generate_latest(self._registry)


class _Live(Collector):
    """What is counted elsewhere."""

    def __init__(
        self,
        labels: dict[str, str],
        ledger: Ledger,
        supervisor: Supervisor,
        sampler: Sampler,
        waiting: Callable[[], int],
    ) -> None:
        self._names, self._values = list(labels), list(labels.values())
        self._ledger, self._supervisor, self._sampler, self._waiting = ledger, supervisor, sampler, waiting

    def collect(self) -> Iterable[Metric]:
        ledger, totals, running = self._ledger, self._ledger.totals, self._ledger.running()
        for name, text, figure in _COUNTERS:
            yield self._counter(name, text, [((), figure(ledger))])
        endings = [((ending,), float(getattr(totals, ending))) for ending in ("stop", "length", "cancel", "error")]
        yield self._counter("vllm:request_success", "Requests that have ended, by reason", endings, ("finished_reason",))
        yield self._counter("terrace_engine_restarts", "Engine starts after the first", [((), self._supervisor.restarts)])
        for prefix, now, waits in (
            ("vllm:", "num_requests_running", "num_requests_waiting"),
            ("llamacpp:", "requests_processing", "requests_deferred"),
        ):
            yield self._gauge(prefix + now, "Requests that the engine works on", float(running is not None))
            yield self._gauge(prefix + waits, "Requests in the queue", self._waiting())
        prompt_rate = totals.prompt_tokens * 1000 / totals.prompt_ms if totals.prompt_ms else 0.0
        decode_rate = totals.generated * 1000 / totals.decode_ms if totals.decode_ms else 0.0
        yield self._gauge("llamacpp:prompt_tokens_seconds", "Mean rate of reading prompts, tokens a second", prompt_rate)
        yield self._gauge("llamacpp:predicted_tokens_seconds", "Mean rate of generating, tokens a second", decode_rate)
        ready = self._supervisor.state is EngineState.READY
        yield self._gauge("terrace_engine_ready", "1 while the engine takes requests", float(ready))
        yield from self._machine()

    def _machine(self) -> Iterator[Metric]:
        machine = self._sampler.machine
        if machine is None:
            return
        yield self._gauge("terrace_gateway_memory_bytes", "Resident memory of the gateway", machine.gateway_rss_mib << 20)
        if machine.engine_rss_mib is not None:
            yield self._gauge("terrace_engine_memory_bytes", "Resident memory of the engine", machine.engine_rss_mib << 20)
        used = GaugeMetricFamily("terrace_gpu_memory_used_bytes", "Memory in use on a graphics card", labels=["gpu"])
        for gpu in machine.gpus or ():
            used.add_metric([str(gpu.index)], gpu.memory_used_mib << 20)
        yield used

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=self._names)
        gauge.add_metric(self._values, value)
        return gauge

    def _counter(
        self, name: str, text: str, values: Sequence[tuple[Sequence[str], float]], more_labels: tuple[str, ...] = ()
    ) -> Metric:
        counter = CounterMetricFamily(name, text, labels=[*self._names, *more_labels])
        for labels, value in values:
            counter.add_metric([*self._values, *labels], value)
        return counter


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _inverse(per_second: float | None) -> float | None:
    return 1 / per_second if per_second else None
