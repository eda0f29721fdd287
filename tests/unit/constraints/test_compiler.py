"""Which tokens each kind of constraint allows, on vocabularies that can be written out."""

import threading
from pathlib import Path

import numpy as np
import pytest

from shared.constraints.compiler import ConstraintCompiler
from shared.constraints.constraint import Constraint, ConstraintKind
from shared.constraints.matcher import ConstraintError, ConstraintMatcher
from shared.errors import InvalidRequestError, Reason
from shared.text.tokenizer import Tokenizer
from tests.tiny_models import EOS_TOKEN_ID, IM_END_ID, VOCAB_SIZE

EOS = {EOS_TOKEN_ID, IM_END_ID}


def regex(pattern: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, pattern)


def schema(source: str) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, source)


def grammar(source: str) -> Constraint:
    return Constraint(ConstraintKind.GRAMMAR, source)


def choices(*texts: str) -> Constraint:
    return Constraint(ConstraintKind.CHOICES, choices=texts)


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(tiny_llama_dir)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(tokenizer, VOCAB_SIZE)


def allowed_ids(matcher: ConstraintMatcher) -> set[int]:
    return set(np.flatnonzero(matcher.allowed()).tolist())


def after(compiler: ConstraintCompiler, constraint: Constraint, text: str) -> set[int]:
    matcher = compiler.matcher(constraint)
    for byte in text.encode():
        matcher.advance(byte)
    return allowed_ids(matcher)


@pytest.mark.parametrize(
    ("constraint", "text", "bytes_allowed", "may_end"),
    [
        (regex("[ab]c?"), "", b"ab", False),
        (regex("[ab]c?"), "a", b"c", True),
        (regex("[ab]c?"), "ac", b"", True),
        (regex("(yes|no)?"), "", b"yn", True),
        (regex("é"), "", "é".encode()[:1], False),
        (choices("cat", "car", "dog"), "", b"cd", False),
        (choices("cat", "car", "dog"), "ca", b"tr", False),
        (choices("cat", "cats", "cat"), "cat", b"s", True),
        (choices("", 'a"\\\n'), "", b"a", True),
        (choices("", 'a"\\\n'), 'a"\\', b"\n", False),
        (schema('{"enum": [1, "a", null]}'), "", b'1"n', False),
        (schema('{"type": "array", "items": {"const": 7}, "maxItems": 2}'), "[", b"7]", False),
        (schema('{"type": "array", "items": {"const": 7}, "maxItems": 2}'), "[7", b",]", False),
        (schema('{"type": "array", "items": {"const": 7}, "maxItems": 2}'), "[7,", b" ", False),
        (schema('{"type": "array", "items": {"const": 7}, "maxItems": 2}'), "[7, 7]", b"", True),
        (schema('{"x-guidance": {"item_separator": ","}, "type": "array", "items": {"const": 7}}'), "[7,", b"7", False),
        (schema('{"properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false, '
                '"type": "object"}'), '{"a":', b" ", False),
        (grammar('start: "(" start ")" | "x"'), "((x", b")", False),
        (grammar('start: "(" start ")" | "x"'), "(", b"(x", False),
    ],
)  # fmt: skip
def test_allows_what_leads_on_and_eos_where_the_text_is_whole(
    compiler: ConstraintCompiler, constraint: Constraint, text: str, bytes_allowed: bytes, may_end: bool
) -> None:
    assert after(compiler, constraint, text) == set(bytes_allowed) | (EOS if may_end else set())


def test_the_mask_has_the_models_size_and_free_text_no_special_tokens(compiler: ConstraintCompiler) -> None:
    mask = compiler.matcher(regex("(?s:.*)")).allowed()
    assert mask.shape == (VOCAB_SIZE,)
    assert mask.dtype == np.bool_
    # What cannot begin a character of UTF-8 cannot begin the text.
    assert set(np.flatnonzero(mask).tolist()) == {*range(0x80), *range(0xC2, 0xF5)} | EOS


def test_after_eos_only_eos_is_allowed_and_more_tokens_are_taken(compiler: ConstraintCompiler) -> None:
    matcher = compiler.matcher(regex("a*"))
    for token_id in (*b"aa", IM_END_ID, EOS_TOKEN_ID, ord("b")):
        matcher.advance(token_id)
    assert allowed_ids(matcher) == EOS


def test_a_token_that_is_not_allowed_is_an_error_from_then_on(compiler: ConstraintCompiler) -> None:
    matcher = compiler.matcher(regex("ab"))
    with pytest.raises(ConstraintError, match="token 98 cannot follow"):
        matcher.advance(ord("b"))
    with pytest.raises(ConstraintError):
        matcher.allowed()


def test_eos_before_the_text_is_whole_is_an_error(compiler: ConstraintCompiler) -> None:
    with pytest.raises(ConstraintError, match="cannot follow"):
        compiler.matcher(regex("ab")).advance(EOS_TOKEN_ID)


def test_a_grammar_may_name_special_tokens_and_end_with_eos_but_not_go_on_after_it(
    compiler: ConstraintCompiler,
) -> None:
    assert after(compiler, grammar('start: "a" <|im_end|>'), "a") == {IM_END_ID}
    with pytest.raises(ConstraintError, match="no token can follow"):
        after(compiler, grammar('start: "a" <|im_end|> "b"'), "a")


def test_copies_go_their_own_ways(compiler: ConstraintCompiler) -> None:
    first = compiler.matcher(choices("ax", "by"))
    second = first.copy()
    first.advance(ord("a"))
    second.advance(ord("b"))
    third = second.copy()
    second.advance(ord("y"))
    assert allowed_ids(first) == {ord("x")}
    assert allowed_ids(second) == EOS
    assert allowed_ids(third) == {ord("y")}


def test_compiles_a_constraint_once_while_it_is_in_the_cache(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = ConstraintCompiler(tokenizer, VOCAB_SIZE, max_cached=2)
    compiled: list[str] = []
    compile_one = compiler._compile

    def counting(constraint: Constraint) -> ConstraintMatcher:
        compiled.append(constraint.source)
        return compile_one(constraint)

    monkeypatch.setattr(compiler, "_compile", counting)
    for pattern in ("a", "b", "a", "c", "a", "b"):  # "c" drops "b", the one not used for longest
        assert allowed_ids(compiler.matcher(regex(pattern))) == {ord(pattern)}
    assert compiled == ["a", "b", "c", "b"]


def test_a_cached_constraint_is_not_changed_by_those_who_use_it(compiler: ConstraintCompiler) -> None:
    compiler.matcher(regex("xy")).advance(ord("x"))
    assert after(compiler, regex("xy"), "") == {ord("x")}


def test_threads_share_a_compiler_and_use_their_own_copies(tokenizer: Tokenizer) -> None:
    compiler = ConstraintCompiler(tokenizer, VOCAB_SIZE)
    constraint = choices(*(f"{word}!" for word in ("alpha", "beta", "gamma", "delta")))
    texts = [choice.encode() for choice in constraint.choices] * 2
    ended: list[bytes] = []

    def follow(text: bytes) -> None:
        for _ in range(20):
            matcher = compiler.matcher(constraint)
            for byte in text:
                assert byte in allowed_ids(matcher)
                matcher.advance(byte)
            assert allowed_ids(matcher) == EOS
        ended.append(text)

    threads = [threading.Thread(target=follow, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == sorted(texts)


@pytest.mark.parametrize(
    ("constraint", "field", "detail"),
    [
        (schema("{"), "json_schema", "Expecting property name"),
        (schema("[]"), "json_schema", "must be a JSON object"),
        (schema("true"), "json_schema", "must be a JSON object"),
        (schema('{"type": "nothing"}'), "json_schema", "nothing"),
        (schema('{"x-guidance": {"lenient": true}}'), "json_schema", "lenient"),
        (schema('{"x-guidance": 7}'), "json_schema", "must be an object"),
        (schema('{"type": "array", "uniqueItems": true}'), "json_schema", "uniqueItems"),
        (schema('{"not": {"type": "null"}}'), "json_schema", "not"),
        (schema('{"if": {"type": "null"}, "then": {}}'), "json_schema", "if"),
        (schema('{"type": "array", "contains": {"type": "null"}}'), "json_schema", "contains"),
        (schema('{"type": "object", "propertyNames": {"pattern": "a"}}'), "json_schema", "propertyNames"),
        (schema('{"type": "object", "dependentRequired": {"a": ["b"]}}'), "json_schema", "dependentRequired"),
        (schema('{"oneOf": [{"type": "integer"}, {"type": "number"}]}'), "json_schema", "oneOf"),
        (schema('{"items": {"type": "object", "minProperties": 2}}'), "json_schema", "minProperties"),
        (schema('{"$ref": "https://example.org/schema"}'), "json_schema", "example.org"),
        (schema('{"type": "string", "format": "iri"}'), "json_schema", "iri"),
        (schema('{"type": "string", "pattern": "(?=a)b"}'), "json_schema", "look-around"),
        (schema('{"type": "integer", "minimum": 5, "maximum": 3}'), "json_schema", "greater"),
        (schema('{"$ref": "#"}'), "json_schema", "no text can follow"),
        (schema('{"items": ' * 6000 + "{}" + "}" * 6000), "json_schema", "bytes"),
        (schema('{"a":' * 5000 + "{}" + "}" * 5000), "json_schema", "recursion"),
        (regex("(" * 30_000 + "a" + ")" * 30_000), "regex", "invalid regex"),
        (grammar("start: " + "(" * 30_000 + '"a"' + ")" * 30_000), "grammar", "nested"),
        (regex("("), "regex", "unclosed group"),
        (regex(r"(?=a)b"), "regex", "look-around"),
        (regex(r"(a)\1"), "regex", "backreferences"),
        (regex(r"[^\s\S]"), "regex", "no text can follow"),
        (regex(""), "regex", "0 bytes"),
        (regex("a" * 65_537), "regex", "65537 bytes"),
        (grammar("start: nothing"), "grammar", "nothing"),
        (grammar("begin: /a/"), "grammar", "start"),
        (choices(), "choices", "there are 0"),
        (choices(*map(str, range(1025))), "choices", "there are 1025"),
        (choices("a", "b" * 1025), "choices", "1025 characters"),
    ],
)
def test_refuses_what_it_cannot_enforce_and_says_why(
    compiler: ConstraintCompiler, constraint: Constraint, field: str, detail: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiler.matcher(constraint)
    assert caught.value.reason is Reason.CONSTRAINT_INVALID
    assert caught.value.metadata["field"] == f"sampling.{field}"
    assert detail in caught.value.metadata["detail"]
    assert caught.value.metadata["detail"] in caught.value.message


def test_a_refusal_is_the_same_the_second_time(compiler: ConstraintCompiler) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="unclosed group"):
            compiler.matcher(regex("("))


def test_a_model_without_eos_cannot_be_constrained(tokenizer: Tokenizer) -> None:
    endless = Tokenizer(tokenizer._backend)
    with pytest.raises(InvalidRequestError, match="no end-of-sequence token"):
        ConstraintCompiler(endless, VOCAB_SIZE).matcher(regex("a"))


@pytest.mark.parametrize(
    ("constraint", "num_tokens"),
    [
        (grammar('start: a\na: a a | "x" |'), 1000),
        (grammar('start: e\ne: x{1,1000}\nx: "x"{1,1000}'), 1200),
        (regex("x{2}.*x.{2000}y"), 3000),
    ],
)
def test_a_constraint_that_grows_too_complex_ends_in_one_error_not_in_a_hang(
    compiler: ConstraintCompiler, constraint: Constraint, num_tokens: int
) -> None:
    matcher = compiler.matcher(constraint)

    def go_on() -> None:
        for _ in range(num_tokens):
            assert matcher.allowed()[ord("x")]
            matcher.advance(ord("x"))

    with pytest.raises(ConstraintError):
        go_on()
    with pytest.raises(ConstraintError):
        matcher.allowed()


def test_a_schema_that_is_nested_too_deeply_is_refused(compiler: ConstraintCompiler) -> None:
    with pytest.raises(InvalidRequestError, match="nested too deeply") as caught:
        compiler.matcher(schema('{"items": ' * 500 + "{}" + "}" * 500))
    assert caught.value.reason is Reason.CONSTRAINT_INVALID


@pytest.mark.parametrize("pattern", ["(a{1000}){300}", "(a{1000}){1000}"])
def test_a_pattern_that_takes_long_to_compile_is_refused_and_not_begun(
    compiler: ConstraintCompiler, pattern: str
) -> None:
    with pytest.raises(InvalidRequestError, match="lexer error") as caught:
        compiler.matcher(regex(pattern))
    assert caught.value.reason is Reason.CONSTRAINT_INVALID
