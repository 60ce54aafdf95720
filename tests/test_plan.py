# SPDX-License-Identifier: MIT
"""esker plan: the worked numbers of the reference pack from its header alone, and that what is
shown is what a run applies."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import esker
import pytest
from esker.cli import main
from esker.options import LOAD

PACK_ARENA = ("--arena", "6.80GB", "--min-slots", "576")

# Section 2 of the reference measurements, K = 512 IQ2_XS: role, calls, types, MB a token. Their
# router row holds the read-ahead routers too; here those are a row of their own.
NOTES = [
    ("attn_qkv", 36, {"IQ4_XS": 35, "IQ3_S": 1}, 498.69),
    ("moe gate+up", 480, {"IQ2_S": 34, "IQ2_XXS": 12, "IQ3_S": 2}, 486.40),
    ("mixers", 97, {"Q8_0": 290}, 679.62),
    ("output", 1, {"IQ4_XS": 1}, 337.72),
    ("attn_gate", 36, {"IQ4_XS": 22, "IQ3_S": 11, "Q6_K": 3}, 296.88),
    ("ssm_out", 36, {"IQ4_XS": 29, "IQ3_S": 6, "Q6_K": 1}, 295.77),
    ("moe down", 480, {"Q2_0": 48}, 221.18),
    ("attn_q", 12, {"IQ4_XS": 11, "IQ3_S": 1}, 197.35),
    ("router+read-ahead", 48 + 47 + 46, {"BF16": 48, "Q8_0": 93}, 255.34),
    ("attn_output", 12, {"IQ4_XS": 10, "IQ3_S": 1, "Q6_K": 1}, 103.22),
    ("shared expert", 144, None, 134.98),
    ("ple key+value", 2, {"BF16": 2}, 65.54),
    ("indexer/k/v/alpha/beta", 120, None, 76.63),
]
NOTES_TOTAL_MB = 3649.78


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for option in LOAD:
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    """header(preset) -> path of a file that is only that model's header."""
    folder = tmp_path_factory.mktemp("headers")

    def make(preset):
        path = folder / f"{preset}.gguf"
        if not path.exists():
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                assert main(["synth", "--preset", preset, "--header-only", str(path)]) == 0
        return path

    return make


@pytest.fixture
def plan(esker_):
    """plan(*words) -> the object of esker plan --json."""

    def call(*words):
        status, out, err = esker_("plan", *words, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return call


@pytest.fixture
def traffic(plan, header):
    return plan("--header", header("k512-iq2_xs"))["traffic"]


def rows_by_role(traffic):
    return {row["role"]: row for row in traffic["rows"]}


def joined(*rows):
    """Several rows as one."""
    types = {name: count for row in rows for name, count in row["types"].items()}
    return {"types": types, **{key: sum(row[key] for row in rows) for key in ("calls", "bytes")}}


# Worked numbers.


@pytest.mark.parametrize(("role", "calls", "types", "megabytes"), NOTES)
def test_traffic_of_the_reference_pack_row_by_row(traffic, role, calls, types, megabytes):
    rows = rows_by_role(traffic)
    rows["router+read-ahead"] = joined(rows["router"], rows["read-ahead routers"])
    assert rows[role]["bytes"] / 1e6 == pytest.approx(megabytes, rel=1e-3)
    assert rows[role]["calls"] == calls
    if types is not None:
        assert rows[role]["types"] == types


def test_traffic_of_the_reference_pack_in_all(traffic):
    assert traffic["total_bytes"] / 1e6 == pytest.approx(NOTES_TOTAL_MB, abs=0.01)
    rows = rows_by_role(traffic)
    experts = rows["moe gate+up"]["bytes"] + rows["moe down"]["bytes"]
    assert experts / 1e6 == pytest.approx(707.58, abs=0.01)
    assert (traffic["total_bytes"] - experts) / 1e6 == pytest.approx(2942.20, abs=0.01)
    assert rows["attn_qkv"]["shapes"] == [[2560, 10240]]
    assert rows["moe gate+up"]["share"] == pytest.approx(0.1333, abs=1e-4)


def test_traffic_says_in_which_total_a_row_counts(traffic):
    by_kind = {"matrix": 0, "read_ahead": 0, "small": 0}
    for row in traffic["rows"]:
        by_kind[row["kind"]] += row["bytes"]
    assert by_kind["read_ahead"] == 93 * 512 * 2560 // 32 * 34 == traffic["read_ahead_bytes"]
    assert by_kind["matrix"] == traffic["total_bytes_without_read_ahead"]
    assert by_kind["matrix"] + by_kind["read_ahead"] == traffic["total_bytes"]
    assert by_kind["small"] == traffic["small_bytes"] < traffic["total_bytes"] / 300
    shares = [row["share"] for row in traffic["rows"] if row["kind"] != "small"]
    assert sum(shares) == pytest.approx(1)
    rows = rows_by_role(traffic)
    assert rows["embedding row"]["bytes"] == 2560 // 256 * 136
    assert rows["n-gram rows"]["calls"] == 16 and rows["n-gram rows"]["kind"] == "small"


def test_arena_of_the_reference_pack(plan, header):
    result = plan("--header", header("k512-iq2_xs"), *PACK_ARENA)
    assert result["slots"] == 4326 and result["experts"] == 48 * 512
    first, second = result["classes"]
    assert (first["pages"], first["slots"], first["layers"]) == (115, 576, [0, 1])
    assert (second["pages"], len(second["layers"])) == (93, 46)
    pages = {(r["pages"], r["layers"]) for c in (first, second) for r in c["records"]}
    assert pages == {(115, 2), (93, 34), (80, 12)}
    assert first["slots_per_layer"] == 288 and first["share_of_experts"] == 0.5625
    assert first["bytes"] + second["bytes"] == result["arena_bytes"] <= 6_800_000_000
    assert result["least_arena_bytes"] == 576 * (115 + 93) * 16384


@pytest.mark.parametrize(("waste", "slots", "pages"), [
    ("0.15", 4326, [115, 93]), ("0.25", None, [115, 80]), ("0.35", 3609, [115]),
    ("0", None, [115, 93, 80]),
])  # fmt: skip
def test_class_waste(plan, header, waste, slots, pages):
    result = plan("--header", header("k512-iq2_xs"), *PACK_ARENA, "--class-waste", waste)
    assert slots is None or result["slots"] == slots
    assert [slot_class["pages"] for slot_class in result["classes"]] == pages


def test_arena_of_256_experts(plan, header):
    result = plan("--header", header("k256-q2_0"), "--arena", "3.80GB")
    assert [(c["pages"], c["slots"]) for c in result["classes"]] == [(85, 2728)]


# Machines and limits.


def test_what_if_is_another_idle_machine(plan, header):
    result = plan("--header", header("k512-iq2_xs"), "--what-if", "16GB")
    assert result["what_if"] and result["fits"]
    assert result["machine"] == {
        "total_bytes": 16_000_000_000, "available_bytes": 16_000_000_000,
    }  # fmt: skip
    assert result["reserve_bytes"] == 16_000_000_000 // 24 * 7
    assert result["limit_bytes"] == 16_000_000_000 - result["reserve_bytes"]
    assert result["total_bytes"] == sum(row["bytes"] for row in result["rows"])
    assert 0 <= result["limit_bytes"] - result["total_bytes"] < 115 * 16384
    small, large = (
        plan("--header", header("k512-iq2_xs"), "--what-if", size)["slots"]
        for size in ("12GB", "24GB")
    )
    assert small < result["slots"] < large


def test_memory_and_context_are_kept_to(plan, header):
    path = header("k512-iq2_xs")
    result = plan("--header", path, "--memory", "8GB", "--context", "32768", "--chunk", "64")
    assert result["limit_bytes"] == 8_000_000_000 >= result["total_bytes"]
    assert (result["context"], result["chunk"]) == (32768, 64)
    state = {row["what"]: row["bytes"] for row in result["rows"]}["state for the context"]
    # Two blocks of recurrent state, and float32 keys, values and block keys of 12 layers.
    recurrent = 36 * (48 * 128 * 128 + 3 * 10240) + 9 * 10240 + 12 * 4 * 128
    appended = 12 * 32768 * (2 * 512 + 128 // 4)
    assert state == 4 * (2 * recurrent + appended)


def test_what_cannot_fit_says_what_would_do(esker_, header):
    words = ("plan", "--header", header("k512-iq2_xs"))
    status, out, err = esker_(*words, "--what-if", "4GB")
    assert (status, out) == (1, "")
    assert "the model does not fit into the memory it may use: got 2.83 GB, want at least 3." in err
    assert "hint: lower --context or --chunk" in err
    status, out, _ = esker_(*words, "--memory", "6GB", "--arena", "6.80GB", "--json")
    assert status == 1 and json.loads(out)["error"]["kind"] == "PlanError"


def test_an_arena_beyond_the_machine_is_shown_as_such(esker_, header):
    words = ("plan", "--header", header("k512-iq2_xs"), "--what-if", "8GB", *PACK_ARENA)
    assert json.loads(esker_(*words, "--json")[1])["fits"] is False
    assert "DOES NOT FIT" in esker_(*words)[1]


# The same plan for all.


@pytest.mark.parametrize("options", [
    {"memory": "60MB"},
    {"memory": "60MB", "slots": 12, "context": 128, "chunk": 16},
    {"memory": "60MB", "arena": "25%", "min_slots": 100, "class_waste": 0.5},
    {"memory": "60MB", "keep_free": "1MB"},
])  # fmt: skip
def test_a_run_applies_what_is_shown(plan, demo_path, options):
    words = [w for name, v in options.items() for w in ("--" + name.replace("_", "-"), str(v))]
    shown = plan(demo_path, *words)
    with esker.Model(demo_path, **options) as model:
        applied = dict(model.plan)
    for key in ("path", "what_if", "traffic"):
        del shown[key]
    assert shown.pop("machine").keys() == applied.pop("machine").keys()
    assert shown == applied


def test_a_header_gives_the_plan_of_the_whole_file(plan, esker_, demo_path, tmp_path):
    whole = plan("--memory", "60MB")  # the demo model, as no other is named
    raw = demo_path.read_bytes()
    head = tmp_path / "head.gguf"
    head.write_bytes(raw[:1_000_000])
    result = plan("--header", head, "--memory", "60MB")
    assert result.pop("path") == str(head) and whole.pop("path").endswith("/esker-demo.gguf")
    assert result.pop("machine").keys() == whole.pop("machine").keys()
    assert result == whole
    # Without --header, and for a run, the file is what it is: too short.
    for words in (("plan", head), ("run", "x", "--model", head)):
        status, _, err = esker_(*words, "--memory", "60MB")
        assert status == 1 and "past the end of the file: got 1000000 bytes, want at least" in err
    head.write_bytes(raw[:1000])
    status, _, err = esker_("plan", "--header", head)
    assert status == 1 and "the file ends inside its metadata: got 1000 bytes" in err


def test_a_mere_header_is_refused_for_what_it_is(esker_, header):
    path = header("k512-iq2_xs")
    for words in (("plan", path), ("run", "x", "--model", path)):
        status, _, err = esker_(*words)
        assert status == 1
        assert "[gguf] the file is only a header, without the tensors' data: got " in err
        assert "hint: esker plan --header plans with it; to run the model, fetch the whole" in err
    with pytest.raises(esker.FormatError, match="only a header"):
        esker.Model(path)


def test_keep_free_and_the_least_slots_are_options_of_a_model(demo_path, monkeypatch):
    with pytest.raises(esker.PlanError):
        esker.Model(demo_path, keep_free="1000TB")
    monkeypatch.setenv("ESKER_CLASS_WASTE", "0.5")
    monkeypatch.setenv("ESKER_MIN_SLOTS", "40")
    with esker.Model(demo_path, memory="60MB", slots=10) as model:
        assert model.plan["slots"] == 80
        assert model.plan["least_arena_bytes"] == 40 * model.plan["classes"][0]["slot_bytes"]


# The table, and wrong usage.


def test_table_shows_rows_classes_and_traffic(esker_, header):
    path = header("k512-iq2_xs")
    status, out, err = esker_("plan", "--header", path, *PACK_ARENA, "--what-if", "24GB")
    assert (status, err) == (0, "")
    for text in (
        "memory plan of k512-iq2_xs.gguf",
        "dense weights (mapped)",
        "state for the context",
        "prompt scratch",
        "n-gram row cache",
        "expert arena",
        "least arena",
        "an idle machine of 24 GB, 24 GB available, 7 GB kept free",
        "1,868,800 B, 115 pages",
        "1,305,600 B, 80 pages (12 layers)",
        "2-47",
        "4,326",
        "35 IQ4_XS",
        "2560 x 10240",
        "498.69",
        "read-ahead routers",
        "3,520.27",
        "3,649.78",
    ):
        assert text in out, text
    assert "DOES NOT FIT" not in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--what-if", "huge"), "[options] what_if: got 'huge', want a size such as 8GB"),
        (
            ("--class-waste", "1"),
            "[options] class_waste: got '1', want a number from 0, less than 1",
        ),
        (("--min-slots", "-1"), "[options] min_slots: got '-1', want a whole number from 0"),
        (("--arena", "1GB", "--slots", "4"), "both arena and slots are set"),
        (("a.gguf", "--model", "b.gguf"), "plan: give MODEL or --model, and not both"),
    ],
)
def test_wrong_usage(esker_, words, complaint):
    status, out, err = esker_("plan", *words)
    assert (status, out) == (2, "") and complaint in err
