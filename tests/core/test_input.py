"""What the input actor makes of one submission, without processes."""

import msgspec
import pytest

from headrace.core.columns import ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import InvalidParameter
from headrace.core.input import InputActor, child_seed
from headrace.core.messages import Admit, KVGroup, Refused, Regained, RequestId, RunnerReady, Submit, TextPart
from headrace.core.params import SamplingParams
from headrace.core.prompts import ChatPrompt, TextPrompt, TokenPrompt
from headrace.core.text.symbols import SymbolsOptions, SymbolsTokenizer

VOCAB = 300
FACTS = RunnerReady(VOCAB, 1000, (KVGroup(1, 100),), 8)
REQUEST = RequestId(0, 1, 0)


def only_known(name: str, arguments: dict) -> None:
    if name != "known":
        raise InvalidParameter(f"logits_processors names {name!r}", "logits_processors")


class CountingTokenizer(SymbolsTokenizer):
    """Knows more tokens than the model, and counts the texts it is given."""

    def __init__(self):
        super().__init__(SymbolsOptions(vocab_size=512, eos_ids=(2, 400)))
        self.texts = []

    def encode(self, text, add_special_tokens=True):
        self.texts.append(text)
        return super().encode(text, add_special_tokens)


def admit(prompt, tokenizer=None, regained=None, **params):
    actor = InputActor(
        tokenizer or CountingTokenizer(), EngineConfig(), FACTS, lambda _messages: None, None, only_known
    )
    return actor.admit(Submit(REQUEST, prompt, SamplingParams(seed=1, **params), regained=regained))


@pytest.mark.parametrize(
    "prompt", [TextPrompt(chr(32 + 299) + chr(32 + 300)), TokenPrompt((300,)), ChatPrompt(({"content": chr(332)},))]
)
def test_D05_a_prompt_has_no_id_that_the_model_lacks_wherever_it_comes_from(prompt):
    (refused,) = admit(prompt)
    assert isinstance(refused, Refused)
    assert refused.error.message == "prompt has the token id 300, ids are 0 to 299"
    assert (refused.error.kind, refused.error.field) == ("InvalidPrompt", "prompt")


def test_ids_that_the_model_lacks_neither_stop_nor_are_masked():
    (admitted,) = admit(TextPrompt("a"), bad_words=[chr(332), "bc"], min_tokens=3)
    assert admitted.stop_ids == admitted.sampling.stop_ids == admitted.eos_ids == (2,)
    assert all(token_id < VOCAB for word in admitted.sampling.bad_words for token_id in word)
    assert admitted.sampling.bad_words


def test_E15_the_completions_of_a_prompt_share_what_is_the_same():
    tokenizer = CountingTokenizer()
    admits = admit(TextPrompt("abc"), tokenizer, n=64, bad_words=["x", "y"])
    assert len(tokenizer.texts) == 1 + 4
    assert [one.request.choice for one in admits] == list(range(64))
    assert [one.sampling.seed for one in admits] == [child_seed(1, choice) for choice in range(64)]
    assert len({one.sampling.seed for one in admits}) == 64
    assert len({(one.token_ids, one.sampling.bad_words) for one in admits}) == 1


def test_prompt_logprobs_come_again_only_for_completions_without_tokens():
    regained = (Regained(0, b""), Regained(2, pack_ints([7, 8])))
    first, third = admit(TextPrompt("abc"), regained=regained, n=3, prompt_logprobs=1)
    assert (first.sampling.prompt_logprobs, first.read_cache) == (1, False)
    assert (third.sampling.prompt_logprobs, third.read_cache) == (None, True)
    texts = [msgspec.msgpack.decode(one.text, type=TextPart) for one in (first, third)]
    assert [text.prompt_logprobs for text in texts] == [1, None]
    assert [text.regained for text in texts] == [b"", pack_ints([7, 8])]
    assert isinstance(third, Admit)
    assert ints(third.token_ids).tolist() == [65, 66, 67, 7, 8]
    assert third.num_prompt == 3
    assert third.request.choice == 2


def test_E15_a_long_prompt_is_not_copied_without_a_limit():
    facts = msgspec.structs.replace(FACTS, max_model_len=10**6)
    actor = InputActor(CountingTokenizer(), EngineConfig(), facts, lambda _messages: None, None, only_known)
    submit = Submit(REQUEST, TokenPrompt((1,) * 100_000), SamplingParams(seed=1, n=168))
    (refused,) = actor.admit(submit)
    assert refused.error.message == "n is 168, must be at most 167 for 100000 prompt tokens"
    assert refused.error.field == "n"
    assert len(actor.admit(msgspec.structs.replace(submit, params=SamplingParams(seed=1, n=2)))) == 2


def test_logits_processors_are_checked_and_passed_on():
    (admitted,) = admit(TextPrompt("a"), logits_processors={"known": {"size": 2}})
    assert admitted.sampling.logits_processors == {"known": {"size": 2}}
    (refused,) = admit(TextPrompt("a"), logits_processors={"known": {}, "other": {}})
    assert (refused.error.kind, refused.error.field) == ("InvalidParameter", "logits_processors")
