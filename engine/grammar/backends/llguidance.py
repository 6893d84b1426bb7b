"""llguidance: JSON schemas, regular expressions (Rust's) and grammars (Lark's dialect, or GBNF), followed lazily.

Nothing is worked out for tokens that never come near, so that compiling takes milliseconds and a mask some 20 us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from ....core.errors import InvalidRequest
from ..asked import WHITESPACE, StructuredOutputs
from ..base import Bits, Vocabulary
from ..schemas import refused
from ..spans import Form, Part, Spans
from ._llguidance_words import fault_in

# Beyond these a grammar is refused, or its row fails: a step's masks may not hold up other streams (200,000 units of
# fuel and 50,000 items are 15 ms and 3 ms of work), nor may one grammar's states take all memory (1 to 2 kB each).
LIMITS = LLParserLimits(
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


class _Tokens:
    """The vocabulary as TokenizerWrapper asks for it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(vocabulary.special)
        self.eos_token_id = vocabulary.eos[0]
        self._encode = vocabulary.encode
        self.greedy: LLTokenizer | None = None  # who tokenises by the longest match, once there is one

    def __call__(self, text: str) -> Sequence[int]:
        """Where a grammar leaves no choice, the text that must come, as the model would write it."""
        found = self._encode(text)
        if found is not None or self.greedy is None:
            return found or []
        return self.greedy.greedy_tokenize(text)


class Llguidance:
    """The Backend."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = _Tokens(vocabulary)
        self._tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=list(vocabulary.eos))
        tokens.greedy = self._tokenizer
        self._special = {vocabulary.tokens[token].decode(errors="replace"): token for token in vocabulary.special}

    def compile(self, asked: StructuredOutputs) -> LlguidanceGrammar:
        try:
            source = _source_of(asked) if asked.spans is None else _source_of_spans(asked.spans, self._special)
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=LIMITS)
        except ValueError as error:
            raise _refused(asked, str(error)) from error
        if matcher.is_error():
            raise _refused(asked, matcher.get_error())
        return LlguidanceGrammar(asked, matcher)


class LlguidanceGrammar:
    """The Grammar: a matcher that never moves. Copies share what they learn of the vocabulary."""

    def __init__(self, asked: StructuredOutputs, start: LLMatcher) -> None:
        self._asked = asked
        self._start = start

    def matcher(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self._asked, self._start.deep_copy())


class LlguidanceMatcher:
    """The Matcher."""

    def __init__(self, asked: StructuredOutputs, matcher: LLMatcher) -> None:
        self._asked = asked
        self._matcher = matcher

    def fill(self, bits: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _too_complex(self._asked, self._matcher.get_error())


def _refused(asked: StructuredOutputs, why: str) -> InvalidRequest:
    said = _first_lines(why)
    return refused(asked, fault_in(said)) if asked.schemas else asked.refused(said)


def _too_complex(asked: StructuredOutputs, why: str) -> InvalidRequest:
    return asked.refused(f"the text could not be followed through the grammar: {_first_lines(why)}")


def _source_of(asked: StructuredOutputs) -> str:
    """The constraint as llguidance reads it."""
    match asked.kind:
        case "regex":
            return str(LLMatcher.grammar_from_regex(asked.regex or ""))
        case "choice":
            return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(_literal, asked.choice or ()))))
        case "grammar":
            return str(grammar_from("grammar", asked.grammar or ""))
    options: dict[str, object] = {"lenient": asked.lenient}
    if asked.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = asked.whitespace_pattern or WHITESPACE
    schema = asked.json if asked.kind == "json" else '{"type": "object"}'
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))  # type: ignore[arg-type]


def _source_of_spans(spans: Spans, special: Mapping[str, int]) -> str:
    """What may stand behind a mark, with blanks after it, between the parts and at the end."""
    schemas = dict.fromkeys(part.schema for form in spans.forms for part in form if part.schema)
    names = {schema: f"json{at}" for at, schema in enumerate(schemas)}

    def rule(part: Part) -> str:
        if part.words:
            return f"<[{special[part.words]}]>" if part.words in special else _literal(part.words)
        return names[part.schema] if part.schema else f"/{part.regex}/"

    def row(form: Form) -> str:
        return " ".join(["BLANKS?", *(f"{rule(part)} BLANKS?" for part in form)])

    lines = ["start: " + " | ".join(map(row, spans.forms)), f"BLANKS: /{WHITESPACE}/"]
    options = {"x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": False}}
    lines += [f"{name}: %json {json.dumps(json.loads(schema) | options)}" for schema, name in names.items()]
    return str(LLMatcher.grammar_from_lark("\n".join(lines)))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _first_lines(error: str) -> str:
    """What a caller may see of it: neither the whole grammar nor a trace."""
    return re.split(r"\n\n|\n<", error.strip(), maxsplit=1)[0][:500]


EXPORT = Llguidance
