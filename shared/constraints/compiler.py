"""Constraints compiled to matchers, by llguidance (docs/decisions/014)."""

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, NoReturn

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.constraints.constraint import Constraint, ConstraintKind, constraint_refusal
from shared.constraints.matcher import ConstraintError, ConstraintMatcher, ConstraintVocabulary
from shared.text.tokenizer import Tokenizer

MAX_SOURCE_LEN = 65_536
"""Bytes of a schema, a pattern or a grammar."""
MAX_NUM_CHOICES = 1024
MAX_CHOICE_LEN = 1024
"""Characters."""
MAX_CACHED = 32
"""Constraints kept compiled: a large one holds 8 MB, and a usual one is compiled again in a millisecond."""

_MAX_DETAIL_LEN = 800
# A mask is made between two steps of a batch, so one completion must not hold up the others: these keep the worst found
# at some 20 ms and 20 MB (the library's own: 200 ms and 80 MB); what real schemas need is far below them. The
# initial fuel bounds compiling, which takes a core from the steps: 0.1 s for `(a{1000}){1000}` (otherwise 1 to 3 s).
_LIMITS = LLParserLimits(
    max_items_in_row=500,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)


class ConstraintCompiler:
    """Makes matchers for one model. Any thread may use it.

    Compiled constraints are kept, least recently used ones dropped first; threads that ask for the same one at the same
    time wait for one compilation.

    Args:
        tokenizer: The model's.
        vocab_size: Logits of the model; may be more than the tokenizer's tokens.
        max_cached: Constraints kept compiled.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_cached: int = MAX_CACHED) -> None:
        self._vocabulary_source = tokenizer
        self._vocab_size = vocab_size
        self._max_cached = max_cached
        self._lock = threading.Lock()
        self._cache: OrderedDict[Constraint, Future[ConstraintMatcher]] = OrderedDict()
        self._compiling = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._vocabulary: ConstraintVocabulary | None = None

    def matcher(self, constraint: Constraint) -> ConstraintMatcher:
        """Return a matcher at the beginning of a completion. Blocks: the first call for as long as half a second.

        Raises:
            InvalidRequestError: CONSTRAINT_INVALID: the constraint cannot be compiled, is larger than the limits, or
                nothing satisfies it, or this model cannot be constrained; metadata: field, and the cause as detail.
        """
        is_first, compiled = self._enter(constraint)
        if is_first:
            self._compile_into(compiled, constraint)
        return compiled.result().copy()

    def _enter(self, constraint: Constraint) -> tuple[bool, Future[ConstraintMatcher]]:
        """Return the constraint's place in the cache, and whether it is new."""
        with self._lock:
            compiled = self._cache.get(constraint)
            if compiled is not None:
                self._cache.move_to_end(constraint)
                return False, compiled
            compiled = self._cache[constraint] = Future()
            if len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)
            return True, compiled

    def _compile_into(self, compiled: Future[ConstraintMatcher], constraint: Constraint) -> None:
        try:
            # One at a time: steps need the cores more.
            with self._compiling:
                compiled.set_result(self._compile(constraint))
        except BaseException as error:
            compiled.set_exception(error)
            self._forget(constraint, compiled)
            raise

    def _forget(self, constraint: Constraint, compiled: Future[ConstraintMatcher]) -> None:
        with self._lock:
            if self._cache.get(constraint) is compiled:
                del self._cache[constraint]

    def _compile(self, constraint: Constraint) -> ConstraintMatcher:
        grammar = _grammar(constraint)
        tokenizer, vocabulary = self._prepare(constraint)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            _refuse(constraint, "cannot be compiled", matcher.get_error())
        compiled = ConstraintMatcher(matcher, vocabulary)
        try:
            # Copies share what the lexer holds: where the first has filled it, the second is told.
            for _ in range(2):
                compiled.copy().allowed()
        except ConstraintError as error:
            _refuse(constraint, "cannot be satisfied", str(error))
        return compiled

    def _prepare(self, constraint: Constraint) -> tuple[LLTokenizer, ConstraintVocabulary]:
        """Return the library's view of the tokenizer, made at first use: it takes a third of a second."""
        if self._tokenizer is None or self._vocabulary is None:
            try:
                self._tokenizer = _library_tokenizer(self._vocabulary_source)
                self._vocabulary = _vocabulary(self._vocabulary_source, self._tokenizer, self._vocab_size)
            except ValueError as error:
                _refuse(constraint, "does not work with this model's tokenizer", str(error))
        return self._tokenizer, self._vocabulary


def _library_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """Return the library's view of a tokenizer.

    Raises:
        ValueError: The model has no token that ends a completion, or its tokens do not stand for bytes.
    """
    if not tokenizer.eos_token_ids:
        raise ValueError("the model has no end-of-sequence token, with which a constrained completion ends")
    eos_token_ids = list(tokenizer.eos_token_ids)
    return LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.vocab_size, eos_token=eos_token_ids)


def _vocabulary(tokenizer: Tokenizer, library: LLTokenizer, vocab_size: int) -> ConstraintVocabulary:
    eos_token_ids = tuple(token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size)
    text_tokens = [
        (token_id, library.decode_bytes([token_id]))
        for token_id in range(min(vocab_size, tokenizer.vocab_size))
        if not library.is_special_token(token_id)
    ]
    to_bytes, is_byte_level = tokenizer.vocabulary.to_bytes, tokenizer.vocabulary.is_byte_level
    never = (token_id for token_id, spelled in text_tokens if is_byte_level and to_bytes(token_id) != spelled)
    never_first = (
        token_id
        for token_id, spelled in text_tokens
        if spelled.startswith(b" ") and not is_byte_level and not tokenizer.decode([token_id]).startswith(" ")
    )
    return ConstraintVocabulary(vocab_size, tokenizer.vocab_size, eos_token_ids, tuple(never), tuple(never_first))


def _grammar(constraint: Constraint) -> str:
    """Return the constraint in the library's notation.

    Raises:
        InvalidRequestError: It is larger than the limits, empty, or no JSON Schema.
    """
    if constraint.kind is ConstraintKind.CHOICES:
        return _grammar_of_choices(constraint)
    length = len(constraint.source.encode())
    if not 0 < length <= MAX_SOURCE_LEN:
        _refuse(constraint, "cannot be compiled", f"it has {length} bytes, and must have 1 to {MAX_SOURCE_LEN}")
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        return _grammar_of_schema(constraint)
    if constraint.kind is ConstraintKind.REGEX:
        return LLMatcher.grammar_from_regex(constraint.source)
    return LLMatcher.grammar_from_lark(constraint.source)


def _grammar_of_choices(constraint: Constraint) -> str:
    num_choices = len(constraint.choices)
    if not 0 < num_choices <= MAX_NUM_CHOICES:
        _refuse(constraint, "cannot be compiled", f"there are {num_choices}, and must be 1 to {MAX_NUM_CHOICES}")
    longest = max(map(len, constraint.choices))
    if longest > MAX_CHOICE_LEN:
        _refuse(constraint, "cannot be compiled", f"one has {longest} characters; {MAX_CHOICE_LEN} are allowed")
    choices = " | ".join(json.dumps(choice) for choice in dict.fromkeys(constraint.choices))
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")


def _grammar_of_schema(constraint: Constraint) -> str:
    schema = _schema_of(constraint)
    own = schema.get("x-guidance", {})
    if not isinstance(own, dict) or own.get("lenient"):
        _refuse(constraint, "cannot be compiled", "x-guidance must be an object, and not lenient")
    try:
        counts_properties = _counts_properties(schema)
    except RecursionError:
        _refuse(constraint, "cannot be compiled", "it is nested too deeply")
    if counts_properties:
        _refuse(constraint, "cannot be compiled", "minProperties above 1 is not enforced, as names could repeat")
    try:
        return LLMatcher.grammar_from_json_schema(
            constraint.source,
            defaults={"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False},
        )
    except ValueError as error:
        _refuse(constraint, "cannot be compiled", str(error))


def _schema_of(constraint: Constraint) -> dict[str, Any]:
    try:
        schema = json.loads(constraint.source)
    except (ValueError, RecursionError) as error:
        _refuse(constraint, "is not JSON", str(error))
    if not isinstance(schema, dict):
        _refuse(constraint, "is no JSON Schema", "it must be a JSON object")
    return schema


def _counts_properties(schema: object) -> bool:
    """Whether `minProperties` asks for more than one property beyond those that are required anyhow."""
    if isinstance(schema, list):
        return any(map(_counts_properties, schema))
    if not isinstance(schema, dict):
        return False
    least, required = schema.get("minProperties"), schema.get("required")
    if isinstance(least, int) and least > max(1, len(required) if isinstance(required, list) else 0):
        return True
    return any(_counts_properties(value) for key, value in schema.items() if key not in ("const", "enum", "default"))


def _refuse(constraint: Constraint, problem: str, detail: str) -> NoReturn:
    raise constraint_refusal(constraint, problem, _shortened(detail.strip()))


def _shortened(detail: str) -> str:
    """Return the beginning and the end: between them the library quotes the constraint."""
    if len(detail) <= _MAX_DETAIL_LEN:
        return detail
    return f"{detail[: _MAX_DETAIL_LEN // 2]} … {detail[-_MAX_DETAIL_LEN // 2 :]}"
