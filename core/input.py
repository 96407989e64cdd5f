"""InputActor: what users send becomes checked token ids. Owner of nothing but its tokenizer and limits."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from headrace.core.calls import Call, Detokenize, GetTrace, Reply, Tokenize, Tokenized
from headrace.core.columns import pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import BatchRefused, InvalidParameter, InvalidPrompt, PromptTooLong, RequestError, describe
from headrace.core.interfaces import BlockKeys, PromptHasher, Tokenizer
from headrace.core.messages import (
    Abort,
    Admit,
    FrontendGone,
    Refused,
    Regained,
    RequestId,
    RowSampling,
    RunnerReady,
    Submit,
    SubmitAll,
    TextPart,
    ToCore,
    ToInput,
)
from headrace.core.params import MAX_SEED, SamplingParams
from headrace.core.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from headrace.core.trace import Tracer

MAX_COPIED_TOKENS = 2**24
"""Tokens of a prompt times n: each completion gets its own copy of them."""
PROMPT_TAIL = 8
"""Ids of the prompt's end that incremental decoders get as context."""


class InputActor:
    """Turns each Submit into n Admits or one Refused.

    hash_prompt is the KV manager's way to name blocks by content; None: it has no prefix cache.
    check_processor raises InvalidParameter where no plugin provides a logits processor of this name and arguments.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: EngineConfig,
        facts: RunnerReady,
        send_core: Callable[[Sequence[ToCore]], None],
        hash_prompt: PromptHasher | None,
        check_processor: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self.send = send_core
        self._clock = time.monotonic
        self._tracer = Tracer("input")
        self._hash_prompt = hash_prompt
        self._check_processor = check_processor
        self._eos_ids = tuple(token_id for token_id in tokenizer.eos_ids if token_id < facts.vocab_size)
        self._pool_tokens = min(group.num_blocks for group in facts.groups) * config.block_size

    def handle(self, messages: Iterable[ToInput]) -> None:
        """Work through messages in their order; each leads to messages to the core at once."""
        for message in messages:
            match message:
                case Submit() | SubmitAll():
                    self.send(self.admit(message))
                case Call(what=Tokenize() | Detokenize()):
                    self.send(self.answer(message))
                case Call():
                    self.send((self.passed_on(message),))
                case Abort() | FrontendGone():
                    self.send((message,))

    def admit(self, message: Submit | SubmitAll) -> list[ToCore]:
        """Return what the core gets: all admitted, or all refused if one is at fault. From any thread."""
        start = self._clock()
        submits = message.submits if isinstance(message, SubmitAll) else (message,)
        admits: list[ToCore] = []
        for submit in submits:
            try:
                admits += self._admits(submit)
            except Exception as error:  # whatever a prompt, template or plugin does ends its own request
                return self._refuse_all(submits, submit, error)
        self._tracer.add("tokenize", start, self._clock(), num_rows=len(admits))
        return admits

    def passed_on(self, call: Call) -> Call:
        """Return a call as the core gets it: a trace takes this process's spans along."""
        if isinstance(call.what, GetTrace):
            return replace(call, what=GetTrace(self._tracer.spans()))
        return call

    def answer(self, call: Call) -> list[ToCore]:
        """Return the reply to a call that needs no core. From any thread."""
        return [self._reply(call)]

    def _reply(self, call: Call) -> Reply:
        try:
            match call.what:
                case Tokenize(prompt=prompt, add_special_tokens=add_special_tokens, with_texts=with_texts):
                    token_ids = self._token_ids(prompt, add_special_tokens)
                    texts = [self._tokenizer.token_text(token_id) for token_id in token_ids] if with_texts else None
                    return Reply(call.frontend, call.call, Tokenized(token_ids, texts))
                case Detokenize(token_ids=token_ids):
                    self._check_vocabulary("tokens", token_ids)
                    text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
                    return Reply(call.frontend, call.call, text)
            raise TypeError(f"{type(call.what).__name__} is not for the input actor")
        except Exception as error:  # whatever a prompt, template or plugin does ends its own call
            return Reply(call.frontend, call.call, error=describe(error))

    def _refuse_all(self, submits: Sequence[Submit], culprit: Submit, error: Exception) -> list[ToCore]:
        refused: list[ToCore] = [Refused(culprit.request, describe(error))]
        also = describe(BatchRefused(f"another request of the same submission is at fault: {error}"))
        return refused + [Refused(submit.request, also) for submit in submits if submit is not culprit]

    def _admits(self, submit: Submit) -> list[Admit]:
        token_ids = self._token_ids(submit.prompt)
        params = submit.params
        if params.n * len(token_ids) > MAX_COPIED_TOKENS:
            most = MAX_COPIED_TOKENS // len(token_ids)
            raise InvalidParameter(f"n is {params.n}, must be at most {most} for {len(token_ids)} prompt tokens", "n")
        max_tokens = self._max_tokens(len(token_ids), params)
        column = pack_ints(token_ids)
        keys = self._block_keys(submit.cache_salt, token_ids)
        eos_ids = () if params.ignore_eos else self._eos_ids
        stop_ids = (*params.stop_token_ids, *eos_ids) if params.stop_token_ids else eos_ids
        self._check_names(params)
        whole = Admit(
            request=submit.request,
            token_ids=column,
            num_prompt=len(token_ids),
            max_tokens=max_tokens,
            min_tokens=params.min_tokens,
            stop_ids=stop_ids,
            eos_ids=eos_ids,
            sampling=self._row_sampling(params, stop_ids),
            priority=submit.priority,
            arrival=submit.arrival,
            policy_args=submit.policy_args,
            block_root=keys.root,
            block_hashes=tuple(keys.digests),
            read_cache=params.prompt_logprobs is None,
        )
        text = self._text_part(token_ids, params)
        return [_admit_of(whole, text, child) for child in children_of(submit)]

    # --- the prompt ---

    def _token_ids(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        match prompt:
            case TextPrompt(text=text):
                token_ids = self._tokenizer.encode(text, add_special_tokens)
            case ChatPrompt(messages=messages):
                token_ids = self._tokenizer.encode(self._tokenizer.render_chat(messages), add_special_tokens=False)
            case TokenPrompt(token_ids=given):
                token_ids = list(given)
        if not token_ids:
            raise InvalidPrompt("prompt is empty, must have at least one token", "prompt")
        self._check_vocabulary("prompt", token_ids, InvalidPrompt)
        return token_ids

    def _max_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        limit = self._facts.max_model_len
        if num_prompt >= limit:
            raise PromptTooLong(
                f"prompt has {num_prompt} tokens, limit is {limit - 1} and one to generate (engine.max_model_len is "
                f"{limit}); shorten it or raise the limit",
                "prompt",
            )
        if params.max_tokens is None:
            return max(1, min(limit - num_prompt, self._pool_tokens - num_prompt + 1))
        if num_prompt + params.max_tokens > limit:
            raise PromptTooLong(
                f"prompt has {num_prompt} tokens and max_tokens is {params.max_tokens}, "
                f"{num_prompt + params.max_tokens} in all; limit is {limit} (engine.max_model_len); shorten them or "
                f"raise the limit",
                "max_tokens",
            )
        return params.max_tokens

    def _block_keys(self, salt: str | None, token_ids: list[int]) -> BlockKeys:
        if self._hash_prompt is None:
            return BlockKeys(b"")
        return self._hash_prompt(salt, np.asarray(token_ids, dtype=np.int32))

    # --- the parameters ---

    def _check_names(self, params: SamplingParams) -> None:
        self._check_vocabulary("stop_token_ids", params.stop_token_ids or ())
        self._check_vocabulary("allowed_token_ids", params.allowed_token_ids or ())
        self._check_vocabulary("logit_bias", params.logit_bias or ())
        for name, arguments in (params.logits_processors or {}).items():
            self._check_processor(name, arguments)

    def _check_vocabulary(
        self, field: str, token_ids: Collection[int], error: type[RequestError] = InvalidParameter
    ) -> None:
        limit = self._facts.vocab_size
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < limit:
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < limit)
            raise error(f"{field} has the token id {wrong}, ids are 0 to {limit - 1}", field)

    def _row_sampling(self, params: SamplingParams, stop_ids: tuple[int, ...]) -> RowSampling:
        assert params.seed is not None
        return RowSampling(
            temperature=params.temperature,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            logit_bias=params.logit_bias or {},
            allowed_ids=None if params.allowed_token_ids is None else tuple(params.allowed_token_ids),
            bad_words=self._bad_words(params),
            min_tokens=params.min_tokens,
            stop_ids=stop_ids,
            logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
            logits_processors=params.logits_processors or {},
        )

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the id sequences of each phrase, as it reads at the start of a text and after a space."""
        found: dict[tuple[int, ...], None] = {}
        for phrase in params.bad_words or ():
            for text in (phrase, " " + phrase.lstrip()):
                token_ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                if token_ids and max(token_ids) < self._facts.vocab_size:  # others are never sampled
                    found[token_ids] = None
        if params.allowed_token_ids is not None:
            single = {ids[0] for ids in found if len(ids) == 1}
            if single.issuperset(params.allowed_token_ids):
                raise InvalidParameter("bad_words forbid every one of allowed_token_ids; allow others", "bad_words")
        return tuple(found)

    def _text_part(self, token_ids: list[int], params: SamplingParams) -> TextPart:
        return TextPart(
            prompt_tail=tuple(token_ids[-PROMPT_TAIL:]),
            stop=tuple(params.stop or ()),
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
            logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
        )


def children_of(submit: Submit) -> Sequence[Regained]:
    """Return the completions that a submission asks for, with what they have already."""
    return submit.regained or tuple(Regained(choice, b"") for choice in range(submit.params.n))


def _admit_of(whole: Admit, text: TextPart, child: Regained) -> Admit:
    """Return one completion's part of a request, which goes on behind the tokens it has."""
    sampling = whole.sampling
    if child.token_ids:  # prompt logprobs came with the first of them
        sampling = replace(sampling, prompt_logprobs=None)
        text = replace(text, prompt_logprobs=None)
    return replace(
        whole,
        request=RequestId(whole.request.frontend, whole.request.counter, child.choice),
        token_ids=whole.token_ids + child.token_ids,
        sampling=replace(sampling, seed=child_seed(sampling.seed, child.choice)),
        read_cache=whole.read_cache or bool(child.token_ids),
        text=msgspec.msgpack.encode(replace(text, regained=child.token_ids)),
    )


def child_seed(seed: int, choice: int) -> int:
    """Derive the seed of one of n completions; the first has the request's own."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{choice}".encode()).digest()
    return int.from_bytes(digest[:8], "little") & MAX_SEED
