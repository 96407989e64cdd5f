from typing import Any

import pytest

from headrace.core.errors import InvalidPrompt, UnsupportedModel
from headrace.core.text.template import ChatTemplate

SIMPLE = "{% for message in messages %}[{{ message['role'] + ':' + message['content'] }}]{% endfor %}"


def user(content: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_messages_are_rendered_with_the_models_special_tokens() -> None:
    template = ChatTemplate(
        "{{ bos_token }}" + SIMPLE + "{% if add_generation_prompt %}>{% endif %}", {"bos_token": "B"}
    )
    assert template.render([{"role": "system", "content": "Be."}, *user("Hi")]) == "B[system:Be.][user:Hi]>"


def test_E08_text_parts_are_one_string() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    template = ChatTemplate(SIMPLE, {})
    assert template.render(user(parts)) == template.render(user("Hello"))


def test_E08_an_assistant_that_called_tools_may_say_nothing() -> None:
    messages = [
        *user("Hi"),
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"role": "tool", "content": ""},
    ]
    assert ChatTemplate(SIMPLE, {}).render(messages) == "[user:Hi][assistant:][tool:]"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["Hi"], r"messages\[0\]"),
        ([*user("Hi"), None], r"messages\[1\]"),
        ([{"content": "Hi"}], r"messages\[0\]\.role"),
        ([{"role": "SYSTEM", "content": "Hi"}], r"messages\[0\]\.role"),
        ([{"role": ["user"], "content": "Hi"}], r"messages\[0\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content"),
        (user(None), r"messages\[0\]\.content"),
        (user(""), r"messages\[0\]\.content"),
        (user([]), r"messages\[0\]\.content"),
        (user(5), r"messages\[0\]\.content"),
        (user({"type": "text", "text": "Hi"}), r"messages\[0\]\.content"),
        (user([{"type": "image_url", "image_url": {}}]), r"messages\[0\]\.content\[0\]"),
        (user([{"type": "text", "text": "Hi"}, {"type": "text", "text": 5}]), r"messages\[0\]\.content\[1\]"),
        (user([5]), r"messages\[0\]\.content\[0\]"),
        ([{"role": "assistant", "content": "Hi"}], "messages"),
        ([*user("Hi"), {"role": "assistant", "content": None}], r"messages\[1\]\.content"),
    ],
)
def test_E08_odd_messages_are_invalid_prompts_that_name_the_place(messages: list[Any], field: str) -> None:
    with pytest.raises(InvalidPrompt, match=field) as caught:
        ChatTemplate(SIMPLE, {}).render(messages)
    assert caught.value.field == field.replace("\\", "")


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0]['tool_calls'][0] }}",
        "{{ messages[0] + 1 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_is_an_invalid_prompt(source: str) -> None:
    with pytest.raises(InvalidPrompt, match="chat template refuses"):
        ChatTemplate(source, {}).render(user("Hi"))


def test_a_template_that_is_none_is_unsupported() -> None:
    with pytest.raises(UnsupportedModel, match="can't be compiled"):
        ChatTemplate("{% for %}", {})


def test_templates_find_what_transformers_gives_them() -> None:
    source = (
        "{%- for message in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ message | tojson }}{% endgeneration %}\n{%- endfor %}{{ strftime_now('%Y') | length }}"
    )
    assert ChatTemplate(source, {}).render([*user("<ü>"), *user("b")]) == '{"role": "user", "content": "<ü>"}4'


def test_the_templates_output_equals_transformers() -> None:
    chat = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (
        "{% for message in messages %}\n  {% if message.role == 'user' %}\nU {{ message.content }}\n  {% else %}\n"
        "A {{ message | tojson(indent=1) }}\n  {% endif %}\n{% endfor %}\n"
    )
    messages = [*user("a & b"), {"role": "assistant", "content": "é"}]
    theirs, _ = chat.render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
    assert ChatTemplate(source, {}).render(messages) == theirs[0]
