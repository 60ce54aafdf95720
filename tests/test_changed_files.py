# SPDX-License-Identifier: MIT
"""A model file that is cut, replaced or rewritten while it is open: one clear error, never a crash.

The mapping's own tests (tests/native/test_mapping.cpp) read the lost pages; these go through a
whole run, in a process of their own where a crash would show.
"""

import os
import shutil
import subprocess
import sys
import textwrap

import esker
import pytest

CUT, REPLACED, REWRITTEN = "cut", "replaced", "rewritten"


@pytest.fixture
def model_copy(tmp_path, model_path):
    path = tmp_path / "model.gguf"
    shutil.copy(model_path("micro-f16"), path)
    return path


def change(path, how):
    if how == CUT:
        os.truncate(path, path.stat().st_size // 3)
    elif how == REPLACED:
        new = path.with_suffix(".new")
        shutil.copy(path, new)
        os.replace(new, path)
    else:
        with open(path, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"\xff" * 50)


@pytest.mark.parametrize("how", [CUT, REPLACED, REWRITTEN])
def test_a_file_changed_while_open_is_an_error(model_copy, how):
    with esker.Model(model_copy, slots=1) as model:
        session = model.session()
        session.prefill([1, 2, 3])
        change(model_copy, how)
        with pytest.raises(esker.ReadError) as caught:
            session.decode(4)
        assert str(model_copy) in str(caught.value)
        assert caught.value.hint
        assert session.position == 3


def test_a_file_cut_in_the_middle_of_a_run_does_not_crash(model_copy):
    """The cut comes from the progress callback, between two chunks, over and over."""
    code = """
        import os, sys
        import esker
        path = sys.argv[1]
        model = esker.Model(path, slots=1)
        def cut(done, total):
            if done >= 20:
                os.truncate(path, 5000)
        try:
            model.session().prefill([i % 500 for i in range(100)], chunk=10, progress=cut)
        except esker.ReadError as error:
            print("ReadError", error.hint)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(model_copy)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ReadError ")
