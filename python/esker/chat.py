# SPDX-License-Identifier: MIT
"""Chat templates: a list of messages to the prompt text that the model was trained on.

Owns: running the Jinja template of a GGUF file, in a sandbox, since it comes with the file.
What users write cannot become control tokens: those in message contents are shielded, and
encode(..., special=True, shield=SHIELD) takes them for text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import FormatError, UsageError, fault

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Message = Mapping[str, Any]  # "role", "content", and whatever else the template reads

# A code point that Unicode keeps for use inside programs; in a message it becomes U+FFFD.
SHIELD = "\ufdd0"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate:
    """The chat template of a model.

    `source` is tokenizer.chat_template; None means ChatML if the vocabulary has its tokens.
    Raises UsageError if there is no template, FormatError if it is not a valid one.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer, where: str = "") -> None:
        self._tokenizer = tokenizer
        self._where = where
        if source is None:
            if tokenizer.token_id("<|im_start|>") is None:
                raise UsageError(
                    fault(
                        "chat",
                        "the model has no chat template",
                        where=where,
                        hint="use it without chat: it continues the prompt",
                    )
                )
            source = CHATML
        elif not isinstance(source, str):
            raise FormatError(
                fault("chat", "tokenizer.chat_template", got=source, want="text", where=where)
            )
        self._template = self._compile(source)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt for these messages, shielded: encode it with special=True, shield=SHIELD.

        Raises UsageError if the messages are not what the template takes, FormatError if the
        template fails.
        """
        from jinja2 import TemplateError
        from jinja2.exceptions import SecurityError

        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise UsageError(
                    fault("chat", "message", got=message, want='{"role": ..., "content": ...}')
                )
        try:
            text: str = self._template.render(
                messages=[self._shielded(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=self._tokenizer.token_text(self._tokenizer.bos),
                eos_token=self._tokenizer.token_text(self._tokenizer.eos),
                tools=None,
            )
            return text
        except SecurityError as error:
            raise self._failed("the chat template does what it may not", error) from None
        except _Refused as error:
            raise UsageError(
                fault("chat", f"the chat template refuses the messages: {error}", where=self._where)
            ) from None
        except (
            TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise self._failed("the chat template fails on the messages", error) from None

    def shielded(self, text: str) -> str:
        """The text with every control token in it broken apart by SHIELD."""
        return self._tokenizer.shield_control(text.replace(SHIELD, "\ufffd"), SHIELD)

    def _compile(self, source: str) -> Any:
        from jinja2 import TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            return environment.from_string(source)
        except TemplateSyntaxError as error:
            raise self._failed("tokenizer.chat_template is not a valid template", error) from None

    def _shielded(self, value: Any) -> Any:
        """A message, or a part of one, with all text shielded but the names."""
        if isinstance(value, str):
            return self.shielded(value)
        if isinstance(value, Mapping):
            return {
                key: part if key == "role" else self._shielded(part) for key, part in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._shielded(part) for part in value]
        return value

    def _failed(self, what: str, error: Exception) -> FormatError:
        line = getattr(error, "lineno", None)
        detail = f"{error.__class__.__name__}: {error}" + (f", line {line}" if line else "")
        return FormatError(
            fault(
                "chat",
                f"{what}: {' '.join(detail.split())}",
                where=self._where,
                hint="use the model without chat: it continues the prompt",
            )
        )


class _Refused(Exception):
    """What a template says with raise_exception."""


def _refuse(message: str) -> NoReturn:
    raise _Refused(" ".join(str(message).split()))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes: Jinja's own filter writes \\u003c for <."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
