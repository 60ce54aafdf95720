# SPDX-License-Identifier: MIT
"""esker logits: the logits of every token of a text, as a .npy file.

Memory holds one chunk's logits at a time; the file appears under its name when it is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EskerError, FormatError, ReadError, fault
from .common import open_model, print_json, prompt_progress, read_prompt

Logits = npt.NDArray[np.float32]


def run(args: argparse.Namespace) -> int:
    prompt: Any = read_prompt(args.prompt) if args.tokens is None else read_tokens(args.tokens)
    with open_model(args) as model:
        session = model.session()
        tokens = session.encode(prompt)
        chunk = model.plan["chunk"]
        shape = (len(tokens), model.info["config"]["n_vocab"])
        with _output(args.out, shape) as append, prompt_progress("computing logits") as progress:
            for begin in range(0, len(tokens), chunk):
                part = tokens[begin : begin + chunk]
                append(session.evaluate(part))
                if progress:
                    progress(begin + len(part), len(tokens))
    if args.json:
        print_json({"out": args.out, "shape": list(shape), "tokens": tokens})
    else:
        print(f"{args.out}: float32 [{shape[0]}, {shape[1]}]")
    return 0


def read_tokens(path: str) -> list[int]:
    """Token ids from a file: .npy (any shape of whole numbers), .json (a list), or text.

    Raises ReadError or FormatError naming the file.
    """
    want = "whole numbers: text with spaces, commas or lines between, a JSON list, or .npy"
    try:
        if path.endswith(".npy"):
            array = np.load(path, allow_pickle=False)
            if not np.issubdtype(array.dtype, np.integer):
                raise FormatError(
                    fault("cli", "token file", got=array.dtype.str, want=want, where=path)
                )
            return [int(token) for token in array.ravel()]
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".json"):
            tokens = json.loads(text)
            if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
                raise FormatError(fault("cli", "token file", got=tokens, want=want, where=path))
            return tokens
        return [int(word) for word in text.replace(",", " ").split()]
    except OSError as error:
        raise ReadError(
            fault("cli", f"cannot read the token file: {error.strerror or error}", where=path)
        ) from None
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(fault("cli", f"token file: {error}", want=want, where=path)) from None


@contextlib.contextmanager
def _output(path: str, shape: tuple[int, int]) -> Iterator[Callable[[Logits], None]]:
    """Yields what appends rows to a new .npy file of that shape, which gets its name if nothing
    goes wrong.  (No mapping: a full disk is then an error and not a signal.)"""
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            yield lambda rows: rows.astype("<f4", copy=False).tofile(file)
        os.replace(part, path)
    except EskerError:
        raise
    except OSError as error:
        raise ReadError(
            fault("cli", f"cannot write the logits: {error.strerror or error}", where=path)
        ) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
