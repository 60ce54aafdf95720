# SPDX-License-Identifier: MIT
"""esker info: what a model file is.  Nothing is loaded but the metadata."""

from __future__ import annotations

import argparse
from typing import Any

from .. import _core
from ..chat import ChatTemplate
from ..errors import EskerError
from ..model import demo_path
from ..tokenizer import Tokenizer
from .common import print_json


def run(args: argparse.Namespace) -> int:
    path = args.load.model or demo_path()
    info = _core.file_info(path, args.load.ngram_table)
    metadata = _core.file_metadata(path)
    info["name"] = metadata.get("general.name")
    info["tokenizer"], absent = _vocabulary(metadata, path)
    info["missing"] = _missing(info) + absent
    if args.json:
        print_json(info)
    else:
        from ..report import print_info

        print_info(info)
    return 0


def _vocabulary(metadata: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Facts of the tokenizer (None if it is not usable), and what it lacks."""
    try:
        tokenizer = Tokenizer(metadata, path)
    except EskerError as error:
        return None, [f"usable tokenizer: {error.message}"]
    facts = {
        "kind": tokenizer.kind,
        "pre": tokenizer.pre,
        "n_vocab": tokenizer.n_vocab,
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "add_bos": tokenizer.add_bos,
        "stop_tokens": sorted(tokenizer.stop_tokens),
        "chat_template": "file" if "tokenizer.chat_template" in metadata else None,
    }
    if facts["chat_template"]:
        return facts, []
    try:
        ChatTemplate(None, tokenizer, path)
    except EskerError:
        return facts, ["chat template (chat does not work)"]
    facts["chat_template"] = "ChatML"
    return facts, ["chat template (ChatML serves, whose tokens the vocabulary has)"]


def _missing(info: dict[str, Any]) -> list[str]:
    missing = []
    if not info["config"]["n_mtp_layer"]:
        missing.append("MTP head (drafts from the model's own head)")
    if not any(tensor["role"] == "output" for tensor in info["tensors"]):
        missing.append("output.weight (token_embd.weight serves)")
    if not any(info["config"]["is_ple"]):
        missing.append("n-gram embedding")
    return missing
