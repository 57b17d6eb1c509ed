"""The documents keep their word: examples run, commands exist, links lead somewhere, numbers are of the results."""

import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unicodedata import normalize

import numpy as np
import pytest

from vhydro.cli import GROUPS, VERBS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in PAGES}


# --- examples -------------------------------------------------------------------------------------------------------


def _readme(names: dict) -> None:
    assert names["fitted"].names == names["vh"].load("task.vhydro").names
    assert (names["low"] <= names["high"]).all()


def _start(names: dict) -> None:
    assert names["fitted"].names == ("nothing", "cup with the hand")
    assert [(s.start, s.end) for s in names["fitted"].segments(names["logs"])[0]] == [(0, 26), (26, 63), (63, 81)]
    assert names["vh"].load("task.vhydro").names == names["fitted"].names


def _csv(names: dict) -> None:
    log = names["log"]
    assert ([c.unit for c in log.channels], log.inputs[0].unit) == (["m", "°"], "N")
    assert np.isnan(log.observations[21:30, 1]).all()
    assert (names["cart"][0].dt, names["cart"][0].channels[0].unit) == (pytest.approx(0.1), "m")


def _aloha(names: dict) -> None:
    assert names["arms"][0].channels[0].name == "left.joint_1"


def _write(names: dict) -> None:
    log, again = names["log"], names["again"]
    assert again.names == ("first", "second")
    assert (again[1].channels, again[1].inputs, again[1].dt) == (log.channels, log.inputs, log.dt)
    np.testing.assert_array_equal(again[1].observations, log.observations)
    np.testing.assert_array_equal(again[1].labels["contact"], log.labels["contact"])
    with pytest.raises(ValueError, match=r"expected one, such as my_logs\.npz"):
        names["write"](log, "my_logs.csv")
    with pytest.raises(ValueError, match="1 names for 2 logs"):
        names["write"]([log, log], "others.npz", names=["one"])


def _simulators(names: dict) -> None:
    assert names["labelled"].labels.keys() >= {"regime", "configuration", "friction", "proxy"}


def _model(names: dict) -> None:
    assert names["out"].mode.shape == (201, 2)
    assert names["out"].record.certified.mean() > 0.9


def _sensors(names: dict) -> None:
    assert abs(names["student_run"].mean[15]).max() < 0.2
    assert abs(names["beacon_run"].mean[-1] - [3.0, 4.0]).max() < 0.3


def _modes(names: dict) -> None:
    assert names["fitted"].names[0] == "nothing"


def _laws(names: dict) -> None:
    assert names["law"].status(2) == "identified"
    assert names["path"].shape == (201, 2)


def _planning(names: dict) -> None:
    assert names["proof"].how == "parameters"
    assert names["decision"].follows in ("certified", "fallback")
    assert abs(names["state"][0] - 0.15) < 0.1
    cube, moves = np.asarray(names["cube"]), names["moves"]
    assert np.quantile(cube, 0.01) < names["truth"] < np.quantile(cube, 0.99)
    assert moves.cost < 0.02  # metres off the goal in the mean; a hand that is told to stay: 0.037


def _control_loop(names: dict) -> None:
    log, said, node = names["log"], names["said"], names["node"]
    assert len(said) == log.steps + 1  # a word for every row, none before the first message
    whole = log.observations.copy()
    whole[[t for t in range(len(whole)) if t % 7 == 3]] = np.nan
    belief = names["fitted"].filter(replace(log, observations=whole))
    np.testing.assert_allclose(names["step"].mean, belief.mean[-1], rtol=1e-3, atol=1e-4)
    assert sum(certified for _, _, certified in said) > 0.9 * len(said)
    node.on_joint_state(SimpleNamespace(name=["elbow"], position=[]))  # as drivers send it at first
    node.on_joint_state(SimpleNamespace(name=["elbow"], position=[float("nan")]))
    assert node.fresh == {}


CHECKS: dict[str, Callable[[dict], None]] = {
    "README.md": _readme, "docs/start.md": _start, "docs/howto/csv.md": _csv, "docs/howto/aloha_umi.md": _aloha,
    "docs/howto/write.md": _write, "docs/howto/simulators.md": _simulators, "docs/howto/model.md": _model,
    "docs/howto/sensors.md": _sensors, "docs/ideas/modes.md": _modes, "docs/ideas/laws.md": _laws,
    "docs/ideas/planning.md": _planning, "docs/howto/control_loop.md": _control_loop,
}  # fmt: skip


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every block of Python, and the lines that the document shows right behind it as what is printed."""
    for found in re.finditer(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```)?", text, re.DOTALL | re.MULTILINE):
        yield found[1], [line for line in (found[2] or "").split("\n") if line.strip() not in ("", "…")]


NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?(?:e-?\d+)?")


def same(shown: str, printed: str) -> bool:
    """Whether a line is the one that is shown, but for the last digits of its numbers."""
    shown, printed = (normalize("NFC", line) for line in (shown, printed))  # a dot over a letter is written in two ways
    if NUMBER.sub("#", shown.strip()).split() != NUMBER.sub("#", printed.strip()).split():
        return False
    pairs = zip(*([float(n.replace("−", "-")) for n in NUMBER.findall(s)] for s in (shown, printed)), strict=True)
    return all(abs(a - b) <= 0.01 + 0.02 * abs(a) for a, b in pairs)


WITH_EXAMPLES = [name for name, text in DOCUMENTS.items() if blocks(text, "python")]


@pytest.mark.parametrize("document", WITH_EXAMPLES)
def test_every_example_runs(document, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block, expected in examples(DOCUMENTS[document]):
        capsys.readouterr()
        exec(block, names)  # our own documents
        printed = capsys.readouterr().out.split("\n")
        for line in expected:
            assert any(same(line, other) for other in printed), f"{document} shows {line!r}; printed: {printed}"
    if check := CHECKS.get(document):
        check(names)


def test_no_check_is_of_a_document_that_is_gone():
    assert CHECKS.keys() <= set(WITH_EXAMPLES)


# --- commands -------------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The words after `vhydro` of every command in a block of the shell, or in code of a sentence."""
    shell = [
        line.partition("#")[0] for block in blocks(text, "") + blocks(text, "console") for line in block.split("\n")
    ]
    for line in [*shell, *re.findall(r"`(vhydro [^`]+)`", text)]:
        for part in re.split(r"&&|;", line):
            words = part.strip().removeprefix("$ ").split()
            if words[:1] == ["vhydro"]:
                yield words[1:]


def flags(verb: str) -> set[str]:
    """Every flag of a verb, from its configuration."""
    return {f"--{name.replace('_', '-')}" for name in _fields(_configuration(verb))}


def _configuration(verb: str):
    _, module, configuration, _ = VERBS[verb][:4]
    return getattr(importlib.import_module(module), configuration)


def _fields(configuration) -> Iterator[str]:
    for name, field in configuration.__dataclass_fields__.items():
        inner = field.default_factory if isinstance(field.default_factory, type) else None
        if inner is not None and hasattr(inner, "__dataclass_fields__"):
            yield from _fields(inner)
        yield name


@pytest.mark.parametrize("document", [name for name, text in DOCUMENTS.items() if any(commands(text))])
def test_every_command_has_a_verb_and_flags_that_exist(document):
    for words in commands(DOCUMENTS[document]):
        plain = [w for w in words if not w.startswith("-")]
        if not plain or plain[0] in ("…", "VERB"):
            continue
        verb = " ".join(plain[:2]) if plain[0] in GROUPS else plain[0]
        if verb in GROUPS or (plain[0] in GROUPS and plain[1] == "…"):
            continue
        assert verb in VERBS, f"{document} shows `vhydro {' '.join(words)}`"
        told = {w.partition("=")[0] for w in words if w.startswith("--")}
        known = flags(verb)
        known |= {f"--no-{flag[2:]}" for flag in known} | {"--help", "--json"}
        assert told <= known, f"{document} shows `vhydro {' '.join(words)}`; {verb} has {sorted(known)}"


# --- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = re.sub(r"^```.*?^```", "", DOCUMENTS[document], flags=re.DOTALL | re.MULTILINE)
    for target, heading in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", text):
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), target
        if heading:
            assert heading in anchors(path.read_text("utf-8")), f"{target}#{heading}"


def anchors(text: str) -> set[str]:
    """What GitHub and the site call the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()).replace(" ", "-") for head in heads}


# --- numbers --------------------------------------------------------------------------------------------------------


def tables():
    """The module that makes the tables; it lies beside the documents."""
    spec = importlib.util.spec_from_file_location("documents_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REMEDY = "`python docs/tables.py` writes the tables; then read the prose around them"


def test_every_table_is_of_the_results():
    made = tables()
    used = {m["name"] for text in DOCUMENTS.values() for m in made.MARKED.finditer(text)}
    assert used == set(made.TABLES)
    for name, text in DOCUMENTS.items():
        assert made.written(text) == text, f"{name} says something else than the result files; {REMEDY}"


def test_every_sentence_with_a_number_that_has_a_source_is_of_the_results():
    for name, sentence in tables().sentences():
        said = " ".join(DOCUMENTS[name].split())
        assert sentence in said, f"{name} should say: {sentence}"
