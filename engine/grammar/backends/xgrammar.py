"""XGrammar: JSON schemas, regular expressions and GBNF grammars, worked out for the whole vocabulary in advance.

Compiling takes longer than llguidance's, and asks torch and triton of every process that does it; masks are then quick.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import xgrammar
from xgrammar import CompiledGrammar, Grammar, GrammarMatcher, TokenizerInfo, VocabType

from ....core.errors import InvalidRequest
from ..asked import StructuredOutputs
from ..base import Bits, Vocabulary
from ..schemas import Fault, cannot, refused, schemas_in
from ..spans import Form, Part

# What the library passes over without a word, or reads as less than it says, as oneOf.
NOT_HELD = {"allOf", "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "multipleOf", "not"}
NOT_HELD |= {"$dynamicRef", "contains", "maxContains", "minContains", "oneOf", "then", "uniqueItems"}
NOT_HELD |= {"unevaluatedItems", "unevaluatedProperties", "propertyNames"}
BESIDE_PATTERN = {"minLength", "maxLength", "format"}  # not held where a pattern is too
DATES = ("date", "date-time")  # formats of which only the shape is held
MOST_BLANKS = 21  # in a row, between the tokens of a JSON answer; as asked.WHITESPACE
BLANKS = r"[ \n\r\t]{0,21}"


class Xgrammar:
    """The Backend."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        plain = [b"" if at in vocabulary.special else token for at, token in enumerate(vocabulary.tokens)]
        # Strings of a bounded length are let have control characters, which JSON has not.
        printable = [b"" if any(byte < 32 and byte not in b"\n\r" for byte in token) else token for token in plain]
        self._compiler = _compiler(plain, vocabulary.eos)
        self._json_compiler = _compiler(printable, vocabulary.eos)
        self._special = {vocabulary.tokens[token].decode(errors="replace") for token in vocabulary.special}

    def compile(self, asked: StructuredOutputs) -> XgrammarGrammar:
        if asked.whitespace_pattern is not None:
            raise asked.refused("whitespace_pattern: this server's backend knows only disable_any_whitespace")
        try:
            return XgrammarGrammar(asked, self._compiled(asked))
        except (RuntimeError, ValueError) as error:
            said = re.sub(r"^\[[\d:]+\] \S+: ", "", str(error).strip())[:500]
            raise _refused(asked, said) from error

    def _compiled(self, asked: StructuredOutputs) -> CompiledGrammar:
        match asked.kind:
            case "regex":
                return self._compiler.compile_regex(asked.regex or "")
            case "choice":
                return self._compiler.compile_grammar("root ::= " + " | ".join(map(_literal, asked.choice or ())))
            case "grammar":
                return self._compiler.compile_grammar(asked.grammar or "")
            case "spans":
                assert asked.spans is not None
                forms = [self._form(asked, form) for form in asked.spans.forms]
                return self._json_compiler.compile_grammar(Grammar.union(*forms))
        schema = asked.json if isinstance(asked.json, str) else '{"type": "object"}'
        _check(asked, schema)
        return self._json_compiler.compile_json_schema(
            schema,
            any_whitespace=not asked.disable_any_whitespace,
            separators=(",", ":") if asked.disable_any_whitespace else None,
            max_whitespace_cnt=None if asked.disable_any_whitespace else MOST_BLANKS,
            strict_mode=False,
        )

    def _form(self, asked: StructuredOutputs, form: Form) -> Grammar:
        """What may stand behind a mark, with blanks after it, between the parts and at the end."""
        blanks = Grammar.from_regex(BLANKS)
        return Grammar.concat(blanks, *(each for part in form for each in (self._part(asked, part), blanks)))

    def _part(self, asked: StructuredOutputs, part: Part) -> Grammar:
        if part.words in self._special:
            raise asked.refused(f"this server's backend does not follow the special token {part.words}")
        if not part.schema:
            return (
                Grammar.from_regex(part.regex) if part.regex else Grammar.from_ebnf(f"root ::= {_literal(part.words)}")
            )
        _check(asked, part.schema)
        return Grammar.from_json_schema(part.schema, max_whitespace_cnt=MOST_BLANKS, strict_mode=False)


class XgrammarGrammar:
    """The Grammar."""

    def __init__(self, asked: StructuredOutputs, compiled: CompiledGrammar) -> None:
        self._asked = asked
        self._compiled = compiled
        self._vocab_size: int = compiled.tokenizer_info.vocab_size

    def matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._asked, GrammarMatcher(self._compiled), self._vocab_size)


class XgrammarMatcher:
    """The Matcher."""

    def __init__(self, asked: StructuredOutputs, matcher: GrammarMatcher, vocab_size: int) -> None:
        self._asked = asked
        self._matcher = matcher
        self._full, bits_left = divmod(vocab_size, 32)
        self._rest = (1 << bits_left) - 1

    def fill(self, bits: Bits) -> None:
        if not self._matcher.fill_next_token_bitmask(bits[None]):
            bits[:] = -1
        bits[self._full :] &= self._rest  # what the last word has beyond the vocabulary comes back set

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise self._asked.refused("the text could not be followed through the grammar")

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)


def _compiler(tokens: list[bytes], eos: Sequence[int]) -> xgrammar.GrammarCompiler:
    info = TokenizerInfo(tokens, VocabType.RAW, vocab_size=len(tokens), stop_token_ids=list(eos))
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def _check(asked: StructuredOutputs, schema: str) -> None:
    """Raises InvalidRequest for a schema that an answer would not be held to."""
    passed_over = sorted({each for _, one in schemas_in(json.loads(schema)) for each in _not_held(one)})
    if passed_over and not asked.lenient:
        raise refused(asked, cannot(passed_over))


def _refused(asked: StructuredOutputs, said: str) -> InvalidRequest:
    if not asked.schemas:
        return asked.refused(said)
    return refused(asked, Fault(f"no answer can be held to this schema ({said})"))


def _not_held(schema: dict[str, Any]) -> Iterator[str]:
    """What of one schema an answer would not be held to."""
    yield from NOT_HELD & schema.keys()
    if "pattern" in schema:
        yield from (f"pattern beside {name}" for name in BESIDE_PATTERN & schema.keys())
    if schema.get("format") in DATES:
        yield f"format {schema['format']}"
    if not str(schema.get("$ref", "#")).startswith("#"):
        yield "$ref to elsewhere"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


EXPORT = Xgrammar
