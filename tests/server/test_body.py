"""Bodies that are too long or no requests."""

import pytest
from servers import serving


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt":"a","temperature":"hot"}', "temperature"),
        (b'{"prompt":"a","stream":"maybe"}', "stream"),
        (b'{"prompt":"a","seed":1.5}', "seed"),
        (b'{"prompt":"a","logit_bias":{"abc":1}}', None),
        (b'{"prompt":"a","temperature":NaN}', None),
        (b'{"prompt":"a"', None),
        (b'{"prompt":"\xff"}', None),
        (b'{"prompt":"\\ud800"}', None),
        (b"[1]", None),
        (b"", None),
        (b"null", None),
        (b'{"prompt":' + b"[" * 100_000, None),
        (b'{"prompt":"a","policy_args":' + b'{"a":' * 100_000, None),
        (b"{}", "prompt"),
    ],
)
def test_E09_what_is_no_request_is_refused_naming_the_field(server, body, param):
    answer = server.post("/v1/completions", body)
    assert answer.status == 400
    error = answer.error()
    assert error["type"] == "invalid_request_error"
    if param:
        assert error["param"] == param
        assert param in error["message"]


def test_E09_another_content_type_is_refused(server):
    answer = server.post("/v1/completions", b"prompt=a", **{"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status == 400
    assert answer.error()["code"] == "wrong_content_type"


def test_E09_unknown_fields_are_ignored(server):
    message = {"role": "user", "content": "Hi", "name": "me", "colour": "red"}
    chat = server.post("/v1/chat/completions", {"messages": [message], "max_tokens": 2, "colour": "red"})
    assert chat.status == 200
    assert (
        server.post("/v1/completions", {"prompt": "a", "stream_options": None, "user": "me", "x": [{}]}).status == 200
    )


def test_E15_a_body_past_the_limit_gets_413():
    with serving(max_body_bytes=1000) as server:
        assert server.post("/v1/completions", {"prompt": "a" * 900}).status == 200
        for path in ("/v1/completions", "/tokenize"):
            answer = server.post(path, {"prompt": "a" * 1000})
            assert answer.status == 413
            assert answer.error()["code"] == "body_too_large"
        assert server.post("/v1/completions", {"prompt": "a"}).status == 200


def test_E15_a_body_that_hides_its_length_gets_413_too():
    with serving(max_body_bytes=1000) as server, server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        chunks = (b"%x\r\n" % 600 + b"a" * 600 + b"\r\n") * 2
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")


def test_E15_fifty_megabytes_are_thrown_away_not_kept(server):
    assert server.post("/v1/completions", b'{"prompt":"' + b"a" * 50_000_000 + b'"}').status == 413


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**6),
        ("best_of", 10**6),
        ("prompt_logprobs", 49152),
        ("max_tokens", 10**12),
        ("stop", ["a"] * 10**5),
        ("seed", 2**70),
        ("prompt", "a" * 10**6),
        ("prompt", ["a"] * 5000),
    ],
)
def test_E15_one_request_cannot_ask_for_everything(server, field, value):
    answer = server.post("/v1/completions", {"prompt": "Hello", field: value})
    assert answer.status == 400
    assert field in answer.error()["message"] or answer.error()["param"] == "n"
