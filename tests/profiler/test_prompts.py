"""The bundled prompts, and a user's own: what is refused, and in which words."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tabletune_profiler import prompts
from tabletune_profiler.exit_codes import ExitCode, InputError
from tabletune_profiler.prompts import Prompt, PromptsError

BALANCE = {
    "chat": 30,
    "code": 30,
    "extraction": 30,
    "mathematics": 25,
    "retrieval": 25,
    "languages": 20,
}


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def refusal(data: bytes) -> PromptsError:
    with pytest.raises(PromptsError) as caught:
        prompts.parse(data, "mine.jsonl")
    return caught.value


def text_of(prompt: Prompt) -> str:
    return "\n".join(message.content for message in prompt.messages or ())


# The bundled set


def test_bundled_set_has_160_conversations_with_unique_ids() -> None:
    bundled = prompts.bundled()
    assert len(bundled) == 160
    assert len({prompt.id for prompt in bundled}) == 160
    assert all(prompt.messages for prompt in bundled)


def test_bundled_categories_have_their_shares() -> None:
    assert Counter(prompt.category for prompt in prompts.bundled()) == BALANCE


@pytest.mark.parametrize("length", [8, 16, 32, 64, 100])
def test_any_start_of_the_bundled_set_is_balanced(length: int) -> None:
    # 32 of 160 is a fifth: 6 of the 30 for chat, 5 of the 25 for mathematics, 4 of the 20 for languages;
    # at most one more or less, as the categories take turns.
    start = Counter(prompt.category for prompt in prompts.bundled()[:length])
    for category, count in BALANCE.items():
        assert abs(start[category] - count * length / 160) <= 1, category


def test_no_two_bundled_prompts_share_a_tenth_of_their_word_triples() -> None:
    triples = []
    for prompt in prompts.bundled():
        words = re.findall(r"\w+", text_of(prompt).lower())
        triples.append(set(zip(words, words[1:], words[2:], strict=False)))
    for one, other in itertools.combinations(triples, 2):
        assert len(one & other) <= 1 + min(len(one), len(other)) / 10


def test_bundled_prompts_are_of_diverse_and_bounded_length() -> None:
    sizes = sorted(len(text_of(prompt).encode()) for prompt in prompts.bundled())
    # A token of English text is about 4 bytes: some 15 to 500 tokens.
    assert sizes[0] >= 50
    assert sizes[-1] <= 2_100
    assert sizes[120] >= 2 * sizes[40]  # the quartiles


def test_bundled_retrieval_prompts_hold_a_passage_of_150_to_400_words_and_quote_it() -> None:
    for prompt in prompts.bundled():
        if prompt.category == "retrieval":
            assert 170 <= len(text_of(prompt).split()) <= 420, prompt.id
            assert '"' in text_of(prompt), prompt.id


def test_bundled_languages_are_written_in_at_least_six_scripts() -> None:
    text = "".join(text_of(prompt) for prompt in prompts.bundled() if prompt.category == "languages")
    first_letters = {
        "Latin": "a",
        "Cyrillic": "я",
        "Arabic": "م",
        "Devanagari": "क",
        "Hangul": "이",
        "Kana": "の",
    }
    assert [script for script, letter in first_letters.items() if letter not in text] == []
    assert re.search("[\u4e00-\u9fff]", text)


def test_code_prompts_hold_code() -> None:
    code = [text_of(prompt) for prompt in prompts.bundled() if prompt.category == "code"]
    assert sum("```" in text for text in code) >= 20


# The user's own


def test_all_three_kinds_of_content_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "id": "one",
        "category": "chat",
        "max_tokens": 64,
    }
    path.write_bytes(b"\n".join([line(**chat), line(prompt="Once upon"), line(prompt_token_ids=[1, 2])]))
    one, two, three = prompts.read(path)
    assert (one.id, one.category, one.max_tokens) == ("one", "chat", 64)
    assert two.prompt == "Once upon"
    assert three.prompt_token_ids == (1, 2)


def test_blank_lines_and_windows_line_ends_and_a_byte_order_mark_are_allowed() -> None:
    data = b"\xef\xbb\xbf" + line(prompt="a") + b"\r\n\r\n  \n" + line(prompt="b") + b"\r\n\n"
    assert [prompt.prompt for prompt in prompts.parse(data, "mine.jsonl")] == ["a", "b"]


def test_a_unicode_line_separator_in_a_text_does_not_end_the_line() -> None:
    data = json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False).encode()
    assert prompts.parse(data, "mine.jsonl")[0].prompt == "a\u2028b\x85c"


def test_the_error_is_one_of_bad_input() -> None:
    assert refusal(b"").exit_code == ExitCode.BAD_INPUT


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match=r"absent\.jsonl: must be a readable file.*No such file") as caught:
        prompts.read(tmp_path / "absent.jsonl")
    assert caught.value.file == str(tmp_path / "absent.jsonl")
    assert caught.value.line is None


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptsError, match="Is a directory"):
        prompts.read(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\n \n\r\n"])
def test_file_without_a_prompt_is_refused(data: bytes) -> None:
    assert "no prompt" in refusal(data).found


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    error = refusal(line(prompt="a") + b'\n\n{"prompt": "caf\xe9"}')
    assert (error.line, error.accepted) == (3, "must be UTF-8")
    assert error.found == "byte 0xe9 at position 16"  # 12 bytes before the text, then c, a, f


def test_malformed_json_is_refused_with_line_and_column() -> None:
    error = refusal(line(prompt="a") + b'\n{"prompt": "b"')
    assert (error.line, error.accepted) == (2, "must be one JSON object")
    assert error.found.startswith("column 15")


@pytest.mark.parametrize(
    ("data", "field", "found", "accepted"),
    [
        (b"[1]", "", "[1]", "must be a JSON object"),
        (b"{}", "", "none of them", "exactly one of messages, prompt and prompt_token_ids"),
        (line(prompt="a", prompt_token_ids=[1]), "", "prompt and prompt_token_ids", "exactly one of"),
        (line(promt="a"), "promt", "an unknown field", "id, category, max_tokens, messages, prompt"),
        (line(prompt=" \n"), "prompt", "' \\n'", "must hold text"),
        (line(prompt=7), "prompt", "7", "valid string"),
        (b'{"prompt": "\\ud800"}', "prompt", "'\\ud800'", "without lone surrogates"),
        (line(messages=[]), "messages", "[]", "must not be empty"),
        (line(messages="hi"), "messages", "'hi'", "must be a list"),
        (line(messages=["hi"]), "messages.0", "'hi'", "must be a JSON object"),
        (line(messages=[{"role": "user"}]), "messages.0.content", "no such field", "is a required field"),
        (line(messages=[{"role": "tool", "content": "a"}]), "messages.0.role", "'tool'", "'system', 'user'"),
        (line(messages=[{"role": "user", "content": ""}]), "messages.0.content", "''", "must hold text"),
        (
            line(messages=[{"role": "user", "content": [{"type": "text"}]}]),
            "messages.0.content",
            "[{'type': 'text'}]",
            "valid string",
        ),
        (
            line(messages=[{"role": "user", "content": "a", "name": "b"}]),
            "messages.0.name",
            "an unknown field",
            "role, content",
        ),
        (
            line(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
            "",
            "a last message of role assistant",
            "must end with the user's turn",
        ),
        (line(prompt_token_ids=[]), "prompt_token_ids", "[]", "must not be empty"),
        (line(prompt_token_ids=[3, -1]), "prompt_token_ids.1", "-1", "greater than or equal to 0"),
        (line(prompt_token_ids=[True]), "prompt_token_ids.0", "True", "valid integer"),
        (line(prompt="a", max_tokens=0), "max_tokens", "0", "greater than or equal to 1"),
        (line(prompt="a", max_tokens="9"), "max_tokens", "'9'", "valid integer"),
        (line(prompt="a", id=""), "id", "''", "must hold text"),
    ],
)
def test_wrong_field_is_refused_with_its_path(data: bytes, field: str, found: str, accepted: str) -> None:
    error = refusal(b"\n" + data)
    assert (error.file, error.line, error.field, error.found) == ("mine.jsonl", 2, field, found)
    assert accepted in error.accepted
    where = "mine.jsonl, line 2" + (f", {field}" if field else "")
    assert str(error) == f"{where}: {error.accepted} (found {found})"


def test_line_over_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = line(prompt="abc")
    monkeypatch.setattr(prompts, "MAX_LINE_BYTES", len(fitting))
    assert len(prompts.parse(fitting, "mine.jsonl")) == 1
    error = refusal(fitting + b"\n" + line(prompt="abcd"))
    assert (error.line, error.accepted) == (2, f"must be at most {len(fitting)} bytes")


def test_file_over_the_bound_is_refused_without_reading_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(line(prompt="abc"))
    monkeypatch.setattr(prompts, "MAX_FILE_BYTES", 5)
    with pytest.raises(PromptsError, match="must be at most 5 bytes"):
        prompts.read(path)
    with pytest.raises(PromptsError, match="must be at most 5 bytes"):
        prompts.read(Path("/dev/zero"))


def test_too_many_prompts_are_refused_with_the_first_line_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_PROMPTS", 2)
    two = line(prompt="a") + b"\n\n" + line(prompt="b") + b"\n"
    assert len(prompts.parse(two, "mine.jsonl")) == 2
    error = refusal(two + line(prompt="c"))
    assert (error.line, error.accepted) == (4, "must hold at most 2 prompts")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from([*Prompt.model_fields, "role", "content", "\ud800"]), children, max_size=3
        )
    ),
    max_leaves=12,
)


@given(
    st.binary(max_size=60)
    | st.lists(JSON_VALUES.map(json.dumps), max_size=4).map(lambda lines: "\n".join(lines).encode())
)
@example(b"[" * 100_000)
@example(b'{"prompt_token_ids": [' + b"9" * 5_000 + b"]}")
@example(b'{"prompt": "\\ud800", "\\udfff": 1}')
@example(b'{"prompt": "a", "\\udfff' + b"x" * 2_000 + b'": 1}')
@example(line(prompt="a")[:-1].replace(b"a", b"\xff"))
@example('{"prompt": "a"}'.encode("utf-16"))
@settings(max_examples=200)
def test_hostile_bytes_give_prompts_or_a_prompts_error(data: bytes) -> None:
    try:
        assert prompts.parse(data, "mine.jsonl")
    except PromptsError as error:
        message = str(error)
    else:
        return
    assert message.startswith("mine.jsonl")
    assert len(message.encode()) < 1_000


def test_a_prompt_made_in_code_obeys_the_same_rules() -> None:
    with pytest.raises(ValidationError, match="exactly one of"):
        Prompt(prompt="a", prompt_token_ids=(1,))


# Token ids


class BaseTokenizer:
    """Of a base model: one token id per character, 1 at the start, no template."""

    chat_template: str | None = None

    def encode(self, text: str, /) -> list[int]:
        return [1, *map(ord, text)]

    def apply_chat_template(self, messages: list[dict[str, str]], /, **options: Any) -> Any:
        raise ValueError("tokenizer.chat_template is not set")


class ChatTokenizer(BaseTokenizer):
    """Of a chat model, whose template refuses the roles in ``refused``."""

    chat_template: str | None = "{{ messages }}"
    refused: tuple[str, ...] = ()

    def apply_chat_template(self, messages: list[dict[str, str]], /, **options: Any) -> Any:
        assert options == {"add_generation_prompt": True, "return_dict": False}
        for message in messages:
            if message["role"] in self.refused:
                raise RuntimeError(f"{message['role']} role not supported")
        rendered = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return list(map(ord, rendered + "<assistant>"))


class NoSystemTokenizer(ChatTokenizer):
    refused = ("system",)


class NoUserTokenizer(ChatTokenizer):
    refused = ("user",)


class OwnTemplateTokenizer(ChatTokenizer):
    """As vLLM's for DeepSeek: applies a template that it has in code."""

    chat_template = None


def conversation(*messages: tuple[str, str]) -> Prompt:
    return Prompt.model_validate({"messages": [{"role": role, "content": text} for role, text in messages]})


def characters(ids: list[int]) -> str:
    return "".join(map(chr, ids))


BRIEF_ANSWER = conversation(("system", "Be brief."), ("user", "Why?"))


def test_token_ids_are_given_as_they_are() -> None:
    assert prompts.as_token_ids(Prompt(prompt_token_ids=(5, 6)), BaseTokenizer()) == [5, 6]


def test_text_is_encoded_without_the_chat_template() -> None:
    assert prompts.as_token_ids(Prompt(prompt="a"), ChatTokenizer()) == [1, ord("a")]


@pytest.mark.parametrize("tokenizer", [ChatTokenizer(), OwnTemplateTokenizer()])
def test_messages_go_through_the_template_opened_for_the_models_turn(tokenizer: ChatTokenizer) -> None:
    ids = prompts.as_token_ids(BRIEF_ANSWER, tokenizer)
    assert characters(ids) == "<system>Be brief.<user>Why?<assistant>"


def test_refused_system_message_is_put_in_front_of_the_users_first() -> None:
    ids = prompts.as_token_ids(BRIEF_ANSWER, NoSystemTokenizer())
    assert characters(ids) == "<user>Be brief.\n\nWhy?<assistant>"


def test_several_refused_system_messages_keep_their_order_and_the_other_turns_their_place() -> None:
    prompt = conversation(("system", "A"), ("user", "1"), ("assistant", "2"), ("system", "B"), ("user", "3"))
    ids = prompts.as_token_ids(prompt, NoSystemTokenizer())
    assert characters(ids) == "<user>A\n\nB\n\n1<assistant>2<user>3<assistant>"


def test_without_a_template_messages_are_plain_text() -> None:
    assert characters(prompts.as_token_ids(BRIEF_ANSWER, BaseTokenizer())) == "\x01Be brief.\n\nWhy?"


def test_template_that_refuses_either_form_is_an_error_with_its_words() -> None:
    with pytest.raises(InputError, match=r"prompt 'Why\?': user role not supported\. Change"):
        prompts.as_token_ids(BRIEF_ANSWER, NoUserTokenizer())
