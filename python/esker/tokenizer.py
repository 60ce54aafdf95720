# SPDX-License-Identifier: MIT
"""Text to tokens and back, from the vocabulary in a GGUF file.

Owns: the byte-level BPE tokenizer (merging is done by the `tokenizers` library), the table of
pre-tokenizers, the streaming detokenizer and the filter for stop strings.  Knows nothing of models.
Invariants: no byte is lost, so tokens_to_bytes(encode(x)) is x for any bytes; what the detokenizer
gives piece by piece is what decode gives at once.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

from .errors import FormatError, UsageError, fault


class PreTokenizer(NamedTuple):
    """How text is cut before merging: patterns applied one after the other."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a cut that is a token as it stands is not merged up
    add_bos: bool = False  # where the file does not say


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    return (
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    ) + _SPACES


_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)

# tokenizer.ggml.pre -> how text is cut.
PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "gpt2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    # As qwen2, with combining marks kept by their letters.
    "qwen35": PreTokenizer(
        (
            _CONTRACTIONS
            + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
            + _SPACES,
        )
    ),
}

# Control tokens that end a text, whatever the metadata call them.
_STOP_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_TYPE_MAX = _BYTE


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)]


_BYTE_CHARS = _byte_alphabet()
_CHAR_BYTES = {char: byte for byte, char in enumerate(_BYTE_CHARS)}


def _bad(what: str, got: object, want: str, where: str, hint: str = "") -> FormatError:
    return FormatError(fault("tokenizer", what, got=got, want=want, where=where, hint=hint))


class Tokenizer:
    """The vocabulary of a model.

    Attributes:
        kind: "gpt2", byte-level BPE, the one kind there is.
        pre: name of the pre-tokenizer.
        n_vocab: number of tokens.
        bos, eos: token ids, or None.
        add_bos: whether a text begins with bos.
        stop_tokens: ids that end a text.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str = "") -> None:
        """From GGUF metadata (arrays as lists).  `where` names the file in errors.

        Raises FormatError naming the key, what stands there and what is wanted.
        """
        self._where = where
        keys = _Keys(metadata, where)
        self.kind = keys.text("tokenizer.ggml.model")
        if self.kind != "gpt2":
            raise _bad(
                "tokenizer.ggml.model",
                self.kind,
                "gpt2 (byte-level BPE)",
                where,
                "this kind of vocabulary is not supported; logits of token ids still work",
            )
        self.pre = keys.text("tokenizer.ggml.pre")
        if self.pre not in PRE_TOKENIZERS:
            raise _bad(
                "tokenizer.ggml.pre",
                self.pre,
                f"one of {', '.join(PRE_TOKENIZERS)}",
                where,
                "text would be cut in the wrong places; logits of token ids still work",
            )
        pre = PRE_TOKENIZERS[self.pre]
        self._tokens: list[str] = keys.array("tokenizer.ggml.tokens", str)
        self.n_vocab = len(self._tokens)
        if not self._tokens:
            raise _bad("tokenizer.ggml.tokens", [], "at least one token", where)
        self._types: list[int] = keys.types(self.n_vocab)
        self._ids = {
            token: index
            for index, (token, kind) in enumerate(zip(self._tokens, self._types))
            if kind not in (_CONTROL, _UNKNOWN, _UNUSED)
        }
        self._control = {
            token: index
            for index, (token, kind) in enumerate(zip(self._tokens, self._types))
            if kind in (_CONTROL, _UNKNOWN) and token
        }
        user = {
            token: index
            for index, (token, kind) in enumerate(zip(self._tokens, self._types))
            if kind == _USER_DEFINED and token
        }
        self._marked = {**user, **self._control}
        self._user_pattern = _alternatives(user)
        self._control_pattern = _alternatives(self._control)
        self._marked_pattern = _alternatives(self._marked)
        self._byte_ids = [self._ids.get(char) for char in _BYTE_CHARS]
        self._unknown = keys.token("unknown_token_id", self.n_vocab)
        self.bos = keys.token("bos_token_id", self.n_vocab)
        self.eos = keys.token("eos_token_id", self.n_vocab)
        self.add_bos = keys.flag("tokenizer.ggml.add_bos_token", pre.add_bos)
        stops = {self.eos, keys.token("eot_token_id", self.n_vocab)}
        stops.update(self._control.get(token) for token in _STOP_TOKENS)
        self.stop_tokens = frozenset(index for index in stops if index is not None)
        unknown = self._unknown if None in self._byte_ids else None
        self._bpe = _build_bpe(self._ids, self.token_text(unknown), unknown, keys, pre)
        self._bytes: list[bytes | None] = [None] * self.n_vocab

    def encode(
        self, text: str | bytes, *, special: bool = False, bos: bool = False, shield: str = ""
    ) -> list[int]:
        """The tokens of a text.

        Control tokens written in the text (`<|im_end|>`) stay text unless `special`; user-defined
        tokens are always recognised.  Bytes that are not UTF-8 (in a str: surrogate escapes)
        become byte tokens.  `bos` puts the bos token in front if the model wants one.  `shield` is
        a character that breaks control tokens apart for the match and is then dropped
        (see `shield_control`).  Raises UsageError for a byte that the vocabulary lacks.
        """
        ids = [self.bos] if bos and self.add_bos and self.bos is not None else []
        for part, is_text in _utf8_parts(text):
            if is_text:
                self._encode_text(part, special, shield, ids)
            else:
                ids.extend(self._byte_token(byte) for byte in part)
        return ids

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens.  Control tokens give no text unless `special`; bytes that are not
        UTF-8 become U+FFFD.  Raises UsageError for an id that is not a token."""
        return self.tokens_to_bytes(tokens, special=special).decode("utf-8", "replace")

    def tokens_to_bytes(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """As decode, before the bytes are read as UTF-8."""
        return b"".join([self.token_bytes(token, special=special) for token in tokens])

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that one token stands for.

        Rows of the model beyond the vocabulary (padding) stand for none.
        """
        if token < 0:
            raise UsageError(fault("tokenizer", "token id", got=token, want="0 or more"))
        if token >= self.n_vocab:
            return b""
        if self._types[token] in (_CONTROL, _UNKNOWN):
            return self._tokens[token].encode("utf-8", "replace") if special else b""
        data = self._bytes[token]
        if data is None:
            data = self._bytes[token] = self._spell(token)
        return data

    def shield_control(self, text: str, shield: str) -> str:
        """The text with `shield` put inside every control token that is written in it, so that
        encode(..., special=True, shield=shield) takes it for what it is: text."""
        return self._control_pattern.sub(lambda found: found[0][0] + shield + found[0][1:], text)

    def token_id(self, text: str) -> int | None:
        """The id of a control or user-defined token, or None."""
        return self._marked.get(text)

    def token_text(self, token: int | None) -> str:
        """A token as the vocabulary writes it, or an empty string for None."""
        return "" if token is None else self._tokens[token]

    def __repr__(self) -> str:
        return f"<esker.Tokenizer {self.kind}/{self.pre}, {self.n_vocab} tokens>"

    def _encode_text(self, text: str, special: bool, shield: str, ids: list[int]) -> None:
        pattern = self._marked_pattern if special else self._user_pattern
        begin = 0
        for found in pattern.finditer(text):
            self._encode_plain(text[begin : found.start()], shield, ids)
            ids.append(self._marked[found[0]])
            begin = found.end()
        self._encode_plain(text[begin:], shield, ids)

    def _encode_plain(self, text: str, shield: str, ids: list[int]) -> None:
        if shield:
            text = text.replace(shield, "")
        if not text:
            return
        if None in self._byte_ids:  # the library would drop these bytes without a word
            for byte in set(text.encode()):
                self._byte_token(byte)
        ids.extend(self._bpe.encode(text, add_special_tokens=False).ids)

    def _byte_token(self, byte: int) -> int:
        index = self._byte_ids[byte]
        if index is None:
            index = self._unknown
        if index is None:
            raise UsageError(
                fault(
                    "tokenizer",
                    f"the vocabulary has no token for byte 0x{byte:02X}",
                    where=self._where,
                    hint="leave the character out of the prompt",
                )
            )
        return index

    def _spell(self, token: int) -> bytes:
        text, kind = self._tokens[token], self._types[token]
        if kind == _UNUSED:
            return b""
        if kind == _USER_DEFINED:
            return text.encode("utf-8", "replace")
        if kind == _BYTE and re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
            return bytes([int(text[3:5], 16)])
        if all(char in _CHAR_BYTES for char in text):
            return bytes([_CHAR_BYTES[char] for char in text])
        return text.encode("utf-8", "replace")


class _Keys:
    """Checked access to the tokenizer's metadata."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata = metadata
        self._where = where

    def require(self, key: str) -> Any:
        if key not in self._metadata:
            raise FormatError(
                fault(
                    "tokenizer",
                    f"{key}: the file has no such key",
                    where=self._where,
                    hint="the file was converted without its vocabulary; convert it again;"
                    " logits of token ids still work",
                )
            )
        return self._metadata[key]

    def text(self, key: str) -> str:
        value = self.require(key)
        if not isinstance(value, str):
            raise _bad(key, value, "text", self._where)
        return value

    def array(self, key: str, kind: type) -> list[Any]:
        value = self.require(key)
        want = {str: "an array of texts", int: "an array of integers"}[kind]
        if not isinstance(value, (list, tuple)):
            raise _bad(key, value, want, self._where)
        for index, element in enumerate(value):
            if type(element) is not kind:
                raise _bad(f"{key}[{index}]", element, want, self._where)
        if kind is str:
            self._check_utf8(key, value)
        return list(value)

    def _check_utf8(self, key: str, texts: Sequence[str]) -> None:
        """Bytes that are not UTF-8 arrive as surrogates."""
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            for index, text in enumerate(texts):
                if not text.isascii() and re.search("[\ud800-\udfff]", text):
                    raise _bad(f"{key}[{index}]", text, "UTF-8", self._where) from None

    def types(self, count: int) -> list[int]:
        key = "tokenizer.ggml.token_type"
        if key not in self._metadata:
            return [_NORMAL] * count
        types = self.array(key, int)
        if len(types) != count:
            raise _bad(f"length of {key}", len(types), f"{count}, one a token", self._where)
        for index, kind in enumerate(types):
            if not 0 <= kind <= _TYPE_MAX:
                raise _bad(f"{key}[{index}]", kind, f"0 to {_TYPE_MAX}", self._where)
        return types

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(key, default)
        if value not in (0, 1):
            raise _bad(key, value, "true or false", self._where)
        return bool(value)

    def token(self, name: str, count: int) -> int | None:
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < count:
            raise _bad(key, value, f"a token id, 0 to {count - 1}", self._where)
        return value


def _alternatives(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the tokens; never matches if there are none."""
    ordered = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _build_bpe(
    ids: dict[str, int], unknown_text: str, unknown: int | None, keys: _Keys, pre: PreTokenizer
) -> Any:
    """The library's BPE over the normal tokens, with the split patterns in front.

    `unknown` stands for a byte that has no token; None where all have.
    """
    key = "tokenizer.ggml.merges"
    merges = []
    for index, merge in enumerate(keys.array(key, str)):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise _bad(f"{key}[{index}]", merge, "two tokens with a space between", keys._where)
        for token in (left, right, left + right):
            if token not in ids:
                raise _bad(
                    f"{key}[{index}]",
                    merge,
                    f"tokens of the vocabulary, {token!r} is not one",
                    keys._where,
                )
        merges.append((left, right))
    options: dict[str, Any] = {"ignore_merges": pre.ignore_merges}
    if unknown is not None:
        ids = {**ids, unknown_text: unknown}
        options["unk_token"] = unknown_text
    pipeline = Pipeline(models.BPE(vocab=ids, merges=merges, **options))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return pipeline


def _utf8_parts(text: str | bytes) -> Iterator[tuple[Any, bool]]:
    """Cuts a text into (str, True) where it is UTF-8 and (bytes, False) where it is not."""
    if isinstance(text, str):
        try:
            text.encode()
            yield text, True
            return
        except UnicodeEncodeError:
            # Lone surrogates that escape no byte mean nothing.
            text = re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", text)
            data = text.encode("utf-8", "surrogateescape")
    elif isinstance(text, (bytes, bytearray)):
        data = bytes(text)
    else:
        raise UsageError(fault("tokenizer", "text", got=text, want="str or bytes"))
    for part in re.split("([\udc80-\udcff]+)", data.decode("utf-8", "surrogateescape")):
        if part and "\udc80" <= part[0] <= "\udcff":
            yield part.encode("utf-8", "surrogateescape"), False
        elif part:
            yield part, True


class Detokenizer:
    """Text of tokens as they come, never half a character.

    The pieces from push() and the last one from finish() joined are what decode() gives for all
    tokens.  Constant work per token: at most three bytes wait for the rest of their character.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token, special=self._special))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class StopFilter:
    """Lets text through up to the first stop string, also where it is spread over pieces.

    The first to be complete counts; of several that end together, the longest.  Text that may be
    the beginning of a stop string is held back until it is known not to be.
    """

    def __init__(self, stop: str | Iterable[str] | None = ()) -> None:
        """Raises UsageError for a stop string that is empty or no text."""
        stops: tuple[object, ...] = (stop,)
        if not isinstance(stop, str):
            stops = tuple(stop) if isinstance(stop, Iterable) else () if stop is None else stops
        for text in stops:
            if not isinstance(text, str) or not text:
                raise UsageError(
                    fault("options", "stop", got=text, want="texts of one character or more")
                )
        self._stops = tuple(dict.fromkeys(map(str, stops)))
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may be shown now.  Once `stopped`, nothing more comes."""
        if self.stopped:
            return ""
        if not self._stops or not text:
            return text
        text = self._held + text
        ends = []
        for stop in self._stops:
            begin = text.find(stop)
            if begin >= 0:
                ends.append((begin + len(stop), begin))
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        keep = len(text) - self._held_length(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        text, self._held = self._held, ""
        return text

    def _held_length(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
