"""The command: what it writes, and what it refuses."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from fedloom.cli.main import app
from fedloom.errors import BadData, BadExperiment, RunStopped
from fedloom.report.figures import STYLE, check_figures
from fedloom.report.group import read_groups
from fedloom.report.latex import escape_latex, latex_table
from fedloom.report.page import write_report
from fedloom.report.recorded import read_run
from fedloom.report.sections import sections_of


def test_the_command_writes_all_it_is_asked_for(folders, tmp_path, monkeypatch):
    monkeypatch.setitem(STYLE, "savefig.dpi", 40)  # quicker
    words = ["report", *map(str, folders), "-o", str(tmp_path / "r.html"), "--target", "0.1"]
    words += ["--png", str(tmp_path / "png"), "--pdf", str(tmp_path / "pdf"), "--latex", str(tmp_path / "t.tex")]
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    names = {file.stem for file in (tmp_path / "png").iterdir()}
    assert names == {file.stem for file in (tmp_path / "pdf").iterdir()}
    assert {"accuracy-rounds", "accuracy-energy", "classes", "coverage-1-feddd", "fairness", "losses", "time"} <= names
    assert {"shares-2-feddd-share", "shares-2-feddd-lost", "similarity-1-safari", "wall"} <= names
    assert all(file.read_bytes().startswith(b"%PDF") for file in (tmp_path / "pdf").iterdir())
    assert (tmp_path / "t.tex").read_text().count("\\\\") == 5  # two heads and three methods


def test_the_table_for_papers(folders):
    groups, _ = read_groups(folders)
    text = latex_table(groups, (0.05, 1.0))
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 1
    rows = [line for line in text.splitlines() if line.endswith("\\\\")][1:]
    assert len({line.count("&") for line in rows}) == 1
    assert "fedavg & $" in text
    assert "\\pm" in text
    assert "--" not in text  # nobody reaches 1, so there are no columns for it
    assert escape_latex(r"a_b%\{") == r"a\_b\%\textbackslash{}\{"


def test_a_section_without_data_says_why(plain):
    groups, _ = read_groups([plain("run")])
    sections = {section.key: section for section in sections_of(groups, (), chosen=True)}
    for key in ("fairness", "coverage", "time", "losses", "targets"):
        assert sections[key].chart is None
        assert sections[key].lead.endswith(".")
    assert "similarity" not in sections
    assert sections["accuracy"].chart is not None


def test_a_run_without_rounds_is_shown(plain, tmp_path):
    folder = plain("run")
    for name in ("rounds.parquet", "clients.parquet", "log.txt"):
        (folder / name).unlink()
    write_report([folder], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "run has no rounds yet." in text
    assert "No round has been evaluated yet." in text


def test_a_run_that_goes_on_is_shown(plain):
    folder = plain("run")
    log = (folder / "log.txt").read_text().replace(" INFO finished\n", " INFO working\n")
    (folder / "log.txt").write_text(log)
    about = (folder / "experiment.json").read_text().replace('"rounds": 4', '"rounds": 30')
    (folder / "experiment.json").write_text(about)
    assert read_run(folder).ended is None
    assert read_groups([folder])[1] == ["run is not over: 4 of 30 rounds so far."]


@pytest.mark.parametrize("name", ["experiment.json", "rounds.parquet", "clients.parquet", "kept.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 64, b'{"experiment": {"method": 3}}'])
def test_damaged_folders_are_named(folders, tmp_path, name, content):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folders[2].iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(content if file.name == name else file.read_bytes())
    with pytest.raises(BadData, match=name):
        read_run(copy)


def test_what_is_no_run_is_refused(plain, tmp_path):
    with pytest.raises(BadExperiment, match=r"'.*nowhere' is not a run folder"):
        read_groups([tmp_path / "nowhere"])
    with pytest.raises(BadExperiment, match="no run folder"):
        read_groups([])
    with pytest.raises(BadExperiment, match="target is 80"):
        write_report([plain("run")], tmp_path / "r.html", [80])
    with pytest.raises(BadExperiment, match="there is no folder"):
        write_report([tmp_path], tmp_path / "missing" / "r.html")
    with pytest.raises(BadExperiment, match="which is a folder"):
        write_report([tmp_path], tmp_path)


def test_a_page_that_cannot_be_written_is_said(folders, tmp_path):
    (tmp_path / ".r.html.new").mkdir()
    with pytest.raises(RunStopped, match=r"cannot write '.*r.html'"):
        write_report(folders, tmp_path / "r.html")


def test_missing_packages_are_named(folders, tmp_path, monkeypatch):
    for module in ("page", "figures"):
        monkeypatch.setattr(sys.modules[f"fedloom.report.{module}"], "find_spec", lambda name: None)
    with pytest.raises(BadExperiment, match=r"plotly.*pip install plotly"):
        write_report(folders, tmp_path / "r.html")
    with pytest.raises(BadExperiment, match=r"matplotlib.*pip install 'fedloom\[report\]'"):
        check_figures(tmp_path)
