"""Options of a server."""

import pytest

from headrace.core.errors import ConfigError
from headrace.server.options import ServerOptions


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("port", 65536, "--port"),
        ("port", -1, "--port"),
        ("max_body_bytes", 0, "--max-body-bytes"),
        ("max_open_requests", 0, "--max-open-requests"),
        ("drain_timeout_s", -1.0, "--drain-timeout"),
        ("stall_limit_s", float("nan"), "--stall-limit"),
        ("generation_config", "vllm", "--generation-config"),
        ("api_keys", ("",), "--api-key"),
    ],
)
def test_a_value_out_of_its_limits_is_told_by_its_flag(field, value, flag):
    with pytest.raises(ConfigError, match=f"^{flag} is "):
        ServerOptions(**{field: value})
