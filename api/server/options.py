"""What can be said of a server. Not here: options of the engine behind it."""

from typing import Literal

from msgspec import Struct

from headrace.core.errors import ConfigError

MIB = 1024 * 1024


class ServerOptions(Struct, frozen=True, kw_only=True):
    """How a server listens and what it lets in. Raises ConfigError naming the option."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one."""
    port: int = 8000
    """0 takes a free one."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead."""
    api_server_count: int = 1
    """Server processes on the engine; more than one leave this process to launch and watch them."""
    api_keys: tuple[str, ...] = ()
    """Requests must carry one of these as their bearer token; empty: anyone may ask."""
    model_names: tuple[str, ...] = ("headrace",)
    """What requests may call the model; responses say the first."""
    generation_config: Literal["none", "auto"] = "none"
    """auto: what a request leaves out of temperature, top_p, top_k, min_p and repetition_penalty is as the model's
    makers recommend; none: as OpenAI's API says, on every model."""
    allow_origins: tuple[str, ...] = ()
    """Web origins whose pages may use the API; "*" is every one."""
    max_body_bytes: int = 16 * MIB
    """Longest request body."""
    max_open_requests: int | None = None
    """HTTP requests that are answered at once; more get 429."""
    drain_timeout_s: float = 30.0
    """After SIGTERM, how long open requests may go on."""
    health_timeout_s: float = 1.0
    """How long /health waits for the engine's answer."""
    stall_limit_s: float = 60.0
    """/health says 503 once ready work or a step has waited so long."""

    def __post_init__(self) -> None:
        """Check limits that types can't say."""
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port is {self.port}, must be 0 to 65535")
        for option in ("max_body_bytes", "max_open_requests", "api_server_count"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(f"--{option.replace('_', '-')} is {value}, must be at least 1")
        for option in ("drain_timeout_s", "health_timeout_s", "stall_limit_s"):
            if not getattr(self, option) >= 0:
                raise ConfigError(f"--{option[:-2].replace('_', '-')} is {getattr(self, option)}, must be at least 0")
        if self.generation_config not in ("none", "auto"):
            raise ConfigError(f"--generation-config is {self.generation_config!r}, must be 'none' or 'auto'")
        if not all(self.api_keys):
            raise ConfigError("--api-key is empty, must be a text of at least one character")
