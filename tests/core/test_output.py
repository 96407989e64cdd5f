import gc
import random
from collections.abc import Sequence
from typing import Any

import pytest
from output_harness import FIRST, U_FFFD, Harness, bound, run, text_part, tokens

from headrace.core.calls import Reply
from headrace.core.errors import ErrorInfo
from headrace.core.messages import Delta, Ended, Finished, Refused, RequestId, StepOutput, StopHit, Usage
from headrace.core.text.tokenizer import FolderTokenizer

# --- one request ---


def test_each_step_gives_a_delta_and_the_last_comes_with_finished(tiny: FolderTokenizer) -> None:
    script = tiny.encode("Hello world!")
    done = run(tiny, script)
    assert done.deltas == ["Hello", " world", "!"]
    assert done.token_ids == script
    assert done.finished.reason == "length"
    assert done.finished.usage == Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)
    assert (done.finished.stop_reason, done.finished.error, done.finished.scheduled) == (None, None, 1.5)
    assert done.hits == []


@pytest.mark.parametrize("script", [[10813, 242, 218], [18645, 250], "👩\u200d👩\u200d👧\u200d👦"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_A01_characters_split_over_tokens_come_out_whole(smol: FolderTokenizer, script: Any, size: int) -> None:
    token_ids = smol.encode(script) if isinstance(script, str) else script
    done = run(smol, token_ids, size)
    assert done.text == smol.decode(token_ids, skip_special_tokens=True)
    assert U_FFFD not in done.text


def test_A01_an_emoji_of_three_tokens_comes_with_the_third(smol: FolderTokenizer) -> None:
    assert run(smol, [10813, 242, 218]).deltas == ["", "", "😀"]


@pytest.mark.parametrize("reason", ["length", "abort"])
def test_A02_an_unfinished_character_comes_with_the_last_chunk(smol: FolderTokenizer, reason: Any) -> None:
    done = run(smol, [19556, 10813, 242], end=Ended(FIRST, reason))
    assert done.deltas == ["Hello", "", U_FFFD]
    assert (done.finished.reason, done.finished.usage.completion_tokens) == (reason, 3)


def test_A02_an_abort_without_new_tokens_brings_the_tail(smol: FolderTokenizer) -> None:
    harness = Harness(smol)
    harness.handle(StepOutput(bound=(bound(),)), tokens((0, [19556, 10813, 242])))
    (finished,) = harness.handle(StepOutput(ended=(Ended(FIRST, "abort"),)))
    assert isinstance(finished, Finished)
    assert (finished.last.text, finished.last.token_ids, finished.reason) == (U_FFFD, b"", "abort")


def test_A03_random_ids_give_the_text_of_all_of_them(tiny: FolderTokenizer) -> None:
    rng = random.Random(2)
    for index in range(200):
        script = [rng.randrange(tiny.vocab_size) for _ in range(32)]
        done = run(tiny, script, size=1 + index % 3)
        assert done.text == tiny.decode(script, skip_special_tokens=True)


def test_A10_spaces_are_kept(smol: FolderTokenizer) -> None:
    assert run(smol, [81, 333, 278]).text == "a    b"
    assert run(smol, [40686, 2273]).text == " " * 64 + " X"
    assert run(smol, [7042]).text == " Paris"


@pytest.mark.parametrize("skip", [True, False])
def test_A13_a_stop_id_counts_but_is_not_text(smol: FolderTokenizer, skip: bool) -> None:
    done = run(smol, [19556, 905, 2], end=Ended(FIRST, "stop", stop_reason=2), skip_special_tokens=skip)
    assert (done.text, done.finished.reason, done.finished.stop_reason) == ("Hello world", "stop", 2)
    assert done.token_ids == [19556, 905, 2]


@pytest.mark.parametrize("skip", [True, False])
def test_A13_eos_is_not_text_and_no_stop_reason(smol: FolderTokenizer, skip: bool) -> None:
    end = Ended(FIRST, "stop")
    done = run(smol, [19556, 905, 2], end=end, skip_special_tokens=skip, stop=("<|im_end|>",))
    assert (done.text, done.finished.reason, done.finished.stop_reason) == ("Hello world", "stop", None)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("size", [1, 4])
def test_A13_a_special_token_as_stop_string_is_found_hidden_or_not(
    smol: FolderTokenizer, skip: bool, size: int
) -> None:
    done = run(smol, [19556, 905, 2, 905], size, skip_special_tokens=skip, stop=("<|im_end|>",))
    assert (done.text, done.finished.reason, done.finished.stop_reason) == ("Hello world", "stop", "<|im_end|>")
    assert done.token_ids == [19556, 905, 2]


def test_A14_a_prompt_that_ends_mid_character_breaks_nothing(smol: FolderTokenizer) -> None:
    done = run(smol, [218, 905], prompt_tail=(19556, 10813, 242))
    assert done.text == smol.decode([218, 905], skip_special_tokens=True)
    assert done.text.endswith(" world")


# --- many requests, rows and frontends ---


def test_a_row_gets_another_request_and_a_request_another_row(tiny: FolderTokenizer) -> None:
    second, third = RequestId(0, 2, 0), RequestId(0, 3, 0)
    a, b, c, d = (tiny.encode(char)[0] for char in "abcd")
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(FIRST, 0), bound(second, 1))))
    harness.handle(tokens((0, [a]), (1, [b])))
    # the first one is preempted, the third takes its row, the first comes back in row 2
    back = bound(FIRST, 2, text=b"")
    sent = harness.handle(
        tokens((0, [c]), (1, [b]), bound=(bound(third, 0),)), tokens((2, [d]), (0, [c]), bound=(back,))
    )
    assert [(message.request, message.text) for message in sent if isinstance(message, Delta)] == [
        (third, "c"),
        (second, "b"),
        (FIRST, "d"),
        (third, "c"),
    ]
    ended = tuple(Ended(request, "length") for request in (FIRST, second, third))
    finished = harness.handle(StepOutput(ended=ended))
    assert [message.usage.completion_tokens for message in finished if isinstance(message, Finished)] == [2, 2, 2]
    assert harness.is_idle()


def test_what_goes_to_one_frontend_is_one_list_in_order(tiny: FolderTokenizer) -> None:
    other = RequestId(7, 1, 0)
    harness = Harness(tiny)
    refused = Refused(RequestId(0, 9, 0), ErrorInfo("QueueFull", "full"))
    reply = Reply(7, 3, value="fine")
    harness.handle(
        StepOutput(bound=(bound(FIRST, 0), bound(other, 1))),
        tokens((0, [50]), (1, [50])),
        refused,
        reply,
        tokens((0, [51])),
    )
    assert [(frontend, [type(message) for message in messages]) for frontend, messages in harness.sent] == [
        (0, [Delta, Refused, Delta]),
        (7, [Delta, Reply]),
    ]


def test_a_request_that_never_ran_still_ends_once(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    (finished,) = harness.handle(StepOutput(ended=(Ended(FIRST, "abort", num_prompt=9, num_cached=4),)))
    assert finished == Finished(Delta(FIRST, ""), "abort", Usage(9, 0, 4))


def test_an_error_of_the_core_is_passed_on(tiny: FolderTokenizer) -> None:
    error = ErrorInfo("RequestFailed", "NaN")
    done = run(tiny, [50], end=Ended(FIRST, "error", error=error))
    assert (done.finished.reason, done.finished.error) == ("error", error)


def test_J01_no_container_grows_with_requests_served(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    script = tiny.encode("Hello!")

    def serve(first: int, count: int) -> None:
        for counter in range(first, first + count):
            request = RequestId(0, counter, 0)
            harness.handle(StepOutput(bound=(bound(request, text=text_part(stop=("!",), logprobs=None)),)))
            harness.handle(tokens((0, script if counter % 2 else script[:1])))
            harness.handle(StepOutput(ended=(Ended(request, "length"),)))
            harness.hits.clear()

    serve(0, 100)
    gc.collect()
    before = len(gc.get_objects())
    serve(100, 1000)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert harness.is_idle()
    assert not harness.actor._cut


def test_J01_hits_whose_end_the_core_never_reports_are_forgotten(tiny: FolderTokenizer) -> None:
    harness, text = Harness(tiny), text_part(stop=("!",))
    for counter in range(5000):
        harness.handle(tokens((0, tiny.encode("!")), bound=(bound(RequestId(0, counter, 0), text=text),)))
    assert len(harness.hits) == 5000
    assert len(harness.actor._cut) < 5000


# --- a tokenizer that fails ---


class BrittleTokenizer:
    """The tiny tokenizer, but its decoders raise on one id, or can't be made at all."""

    def __init__(self, tokenizer: FolderTokenizer, bad_id: int, is_broken: bool = False) -> None:
        self._tokenizer = tokenizer
        self._bad_id = bad_id
        self._is_broken = is_broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def detokenizer(self, prompt_tail: Sequence[int], skip_special_tokens: bool) -> Any:
        if self._is_broken and prompt_tail:
            raise ValueError("no decoder")
        inner, bad_id = self._tokenizer.detokenizer(prompt_tail, skip_special_tokens), self._bad_id

        class Decoder:
            def push(self, token_ids: Sequence[int]) -> str:
                if bad_id in token_ids:
                    raise ValueError("unlucky prefix")
                return inner.push(token_ids)

            def flush(self) -> str:
                return inner.flush()

        return Decoder()


def test_A03_a_decoder_that_raises_fails_its_own_request_only(tiny: FolderTokenizer) -> None:
    harness, second = Harness(BrittleTokenizer(tiny, bad_id=77)), RequestId(0, 2, 0)
    harness.handle(StepOutput(bound=(bound(FIRST, 0), bound(second, 1))), tokens((0, [50]), (1, [50])))
    failed, sound = harness.handle(tokens((0, [77]), (1, [51])))
    assert isinstance(failed, Finished)
    assert (failed.reason, failed.usage.completion_tokens) == ("error", 1)
    assert failed.error == ErrorInfo("RequestFailed", "ValueError: unlucky prefix")
    assert isinstance(sound, Delta)
    assert sound.request == second
    assert harness.hits == [StopHit(FIRST, 1)]
    assert harness.handle(tokens((0, [50]), ended=(Ended(FIRST, "length"),))) == []


def test_a_decoder_that_cannot_be_made_fails_its_own_request_only(tiny: FolderTokenizer) -> None:
    harness, second = Harness(BrittleTokenizer(tiny, 77, is_broken=True)), RequestId(0, 2, 0)
    (failed,) = harness.handle(StepOutput(bound=(bound(text=text_part(prompt_tail=(5,))), bound(second, 1))))
    assert isinstance(failed, Finished)
    assert failed.error == ErrorInfo("RequestFailed", "ValueError: no decoder")
    assert harness.hits == [StopHit(FIRST, 0)]
    assert len(harness.handle(tokens((0, [50]), (1, [50])))) == 1
