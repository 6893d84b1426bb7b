"""The tokenizer and the chat template of a model."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aril.core.errors import InvalidRequest, Unsupported
from aril.engine.text import Text, chosen, facts_of, read_apart
from aril.models.source import Source, locate
from builders.models import make_model, make_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return locate(str(make_model(tmp_path_factory.mktemp("model"))))


def of(tokenizer: PreTrainedTokenizerFast) -> Text:
    facts = facts_of(tokenizer)
    return Text(Tokenizer.from_str(facts["tokenizer"]), facts)


def test_text_survives_the_way_to_tokens_and_back(source):
    text = Text.load(source)
    words = "D\u00e9j\u00e0 vu \U0001f642 <|im_end|> and \u4f60\u597d"
    assert text.decode(text.encode(words), skip_special_tokens=False) == words


@pytest.mark.parametrize("begins", [True, False])
def test_a_long_text_has_the_tokens_of_a_short_one_and_others_run_meanwhile(source, begins):
    text, words = Text.load(source), "the dog \U0001f642 " * 100_000
    beats = []
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(text.encode, words, begins)
        while not found.done():
            beats.append(time.monotonic())
            time.sleep(0.001)
    assert len(beats) > 10
    assert found.result() == text._backend.encode(words, add_special_tokens=begins).ids


def test_the_bytes_of_the_tokens_are_those_of_the_text(source):
    text = Text.load(source)
    words = "na\u00efve \U0001f30d\n"
    assert b"".join(text.token_bytes(token) for token in text.encode(words)) == words.encode()


def test_a_limit_in_the_tokenizer_file_cuts_no_prompt(tmp_path):
    tokenizer = make_tokenizer(vocab_size=512)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert len(of(tokenizer).encode("x " * 50)) > 4


def test_the_models_own_template_renders_a_conversation(source):
    text = Text.load(source)
    shown = text.decode(text.render(HELLO), skip_special_tokens=False)
    assert shown == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("as_file", [True, False])
def test_a_given_template_wins(source, tmp_path, as_file):
    template = "{{ bos_token }}{{ messages[0].content }}{{ mood }}"
    named = template
    if as_file:
        file = tmp_path / "chat.jinja"
        file.write_text(template)
        named = str(file)
    text = Text.load(source, chat_template=named)
    assert text.decode(text.render(HELLO, variables={"mood": "!"}), skip_special_tokens=False) == "<|endoftext|>hello!"


def test_a_template_file_that_is_not_there_is_named(source):
    with pytest.raises(InvalidRequest, match=r"nowhere\.jinja"):
        Text.load(source, chat_template="nowhere.jinja")


def test_a_base_without_a_template_says_what_to_do():
    tokenizer = make_tokenizer(vocab_size=512)
    tokenizer.chat_template = None
    with pytest.raises(InvalidRequest, match="--chat-template") as caught:
        of(tokenizer).render(HELLO)
    assert caught.value.code == "no_chat_template"


def test_what_a_template_refuses_is_the_callers_error(source):
    text = Text.load(source, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        text.render(HELLO)


def test_a_final_message_can_be_continued(source):
    text = Text.load(source)
    messages = [*HELLO, {"role": "assistant", "content": "Ahoy, m"}]
    ids = text.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.decode(ids, skip_special_tokens=False).endswith("assistant\nAhoy, m")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(Unsupported, match="no tokenizer"):
        Text.load(Source(Path(tmp_path), "folder", "bare"))


def test_of_several_templates_tools_have_their_own():
    named = {"default": "d", "tool_use": "t", "rag": "r"}
    assert [chosen(named, None, with_tools=tools) for tools in (False, True)] == ["d", "t"]
    assert [chosen(named, asked, with_tools=False) for asked in ("rag", "{{ x }}")] == ["r", "{{ x }}"]


def test_a_caller_keeps_its_messages_as_they_were(source):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy", "name": None}]
    Text.load(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy", "name": None}]


def test_an_empty_conversation_is_refused(source):
    with pytest.raises(InvalidRequest, match="empty"):
        Text.load(source).render([])


def test_a_child_reads_a_tokenizer_that_nothing_is_remembered_of(source, tmp_path, monkeypatch):
    monkeypatch.setenv("ARIL_CACHE", str(tmp_path))
    read_apart(source)
    monkeypatch.setattr("aril.engine.text.read_tokenizer", None)  # nobody here need read it any more
    assert Text.load(source).encode("hello")
    read_apart(Source(tmp_path, "folder", "no model"))  # what is wrong with it, Text.load says
