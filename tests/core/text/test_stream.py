from typing import Any

import msgspec
import pytest

from headrace.core.messages import TextPart
from headrace.core.text.stream import TextStream
from headrace.core.text.tokenizer import FolderTokenizer


def stream(tokenizer: FolderTokenizer, special_stops: dict[int, str] | None = None, **changed: Any) -> TextStream:
    part = TextPart((), (), include_stop=False, skip_special_tokens=True, min_tokens=0)
    decoder = tokenizer.detokenizer((), skip_special_tokens=True)
    return TextStream(msgspec.structs.replace(part, **changed), decoder, special_stops or {})


def test_tokens_after_the_one_that_completes_a_stop_do_not_count(tiny: FolderTokenizer) -> None:
    text = stream(tiny, stop=("!",))
    assert text.push(tiny.encode("ab!cd")) == "ab"
    assert (text.hit, text.num_tokens) == ("!", 3)
    assert text.finish() == ""


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_A13_a_silent_last_token_counts_without_text(tiny: FolderTokenizer, stop: tuple[str, ...]) -> None:
    text = stream(tiny, stop=stop)
    assert text.push(tiny.encode("ab."), is_last_silent=True) + text.finish() == "ab"
    assert text.num_tokens == 3


def test_a_hidden_special_token_that_is_a_stop_lets_go_of_what_was_held(tiny: FolderTokenizer) -> None:
    text = stream(tiny, {2: "<|im_end|>"}, stop=("<|im_end|>",))
    assert text.push([*tiny.encode("a<"), *tiny.encode("😀")[:1], 2]) == "a<\ufffd"
    assert text.hit == "<|im_end|>"


def test_min_tokens_let_a_stop_pass(tiny: FolderTokenizer) -> None:
    text = stream(tiny, stop=("b",), min_tokens=2)
    assert text.push(tiny.encode("abab")) == "aba"
    assert text.num_tokens == 4
