"""Tests the book's pages of Python: every block of code runs, and the reference agrees with the sources.

The first line of a block may have the command that runs it, as in `# mpirun -n 2 --oversubscribe python train.py` or
`# ringpull launch -n 2 -s 1 -- python train.py`. Without such a line the block runs in one process. A block of text that follows is the
expected output of the processes, in any order.
"""

import ast
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest
from ranks import ROOT, mpi, ringpull_binary, run, start

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: A block of Python, and the block of its output if that follows at once.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)

BLOCKS = [
    pytest.param(code, printed, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, (code, printed) in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_what_a_page_shows_runs(code, printed, tmp_path):
    for package in "torch", "mxnet", "jax", "keras":
        if re.search(rf"^\s*(import|from) (ringpull\.(horovod\.)?)?{package}\b", code, re.MULTILINE):
            pytest.importorskip(package)
    program = tmp_path / "shown.py"
    program.write_text(code)
    ranks = re.match(r"# mpirun -n (\d+) ", code)
    launched = re.match(r"# (ringpull launch .*-n (\d+) .*--) python ", code)
    if ranks or launched:
        if ranks:
            done = mpi(int(ranks[1]), program)
        else:
            words = [ringpull_binary(), *launched[1].split()[1:]]
            done = start(words, int(launched[2]), [sys.executable, program])
        assert done.status == 0, f"{done}"
        lines = [line for rank in done.ranks for line in rank.out.splitlines()]
    else:
        status, output = run([sys.executable, program])
        assert status == 0, output
        lines = output.splitlines()
    if printed:
        assert sorted(lines) == sorted(printed.splitlines())


def test_a_resumed_training_ends_like_one_that_was_not_stopped(tmp_path):
    pytest.importorskip("torch")
    code = BLOCK.search((ROOT / "docs/how-to/checkpoints.md").read_text())[1]

    def train(folder, epochs):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(code)
        done = mpi(2, folder / "train.py", epochs)
        assert done.status == 0, f"{done}"
        return done.ranks[0].out.split()

    (_, _, _, half, *_), (_, begun, *resumed) = train(tmp_path / "stopped", 2), train(tmp_path / "stopped", 4)
    _, fresh, *whole = train(tmp_path / "whole", 4)
    assert (half, begun, fresh) == ("2:", "2", "0")
    assert resumed == whole


def test_the_book_has_blocks_to_run():
    assert len(BLOCKS) >= 8 and sum(bool(block.values[1]) for block in BLOCKS) >= 3


def test_every_page_with_rust_is_compiled():
    named = set(re.findall(r'include_str!\("\.\./([^"]+)"\)', (ROOT / "src/lib.rs").read_text()))
    with_rust = {str(page.relative_to(ROOT)) for page in PAGES if re.search(r"^```rust", page.read_text(), re.MULTILINE)}
    assert named == with_rust


MARKDOWN = [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")), *ROOT.glob("*/README.md"), ROOT / "benches/results/README.md"]


def without_code(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The anchors of the page's headings: the part of a link behind its #."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(set(MARKDOWN)), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_names_what_is_there(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_few_sentences_lack_a_subject():
    if not (ROOT / ".git").exists():
        pytest.skip("git lists the files that are read")
    status, output = run([sys.executable, ROOT / "scripts/prose"])
    assert status == 0, output


def test_every_page_has_a_place_in_the_book():
    summary = ROOT / "docs/SUMMARY.md"
    placed = {(summary.parent / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", summary.read_text())}
    assert set(PAGES) - {summary} <= placed


#: The files of Horovod's functions for PyTorch.
OF_HOROVOD_TORCH = (
    *("__init__", "reductions", "scattering", "travelling", "mpi_ops"),
    *("functions", "optimizer", "compression", "sync_batch_norm"),
)
#: The modules of the reference with their files, in the order of the page.
MODULES = {
    "ringpull": ["kvstore.py", "worker.py", "collectives.py", "shares.py", "stopping.py", "optimizers.py", "errors.py"],
    "ringpull.elastic": ["elastic/state.py", "elastic/sampling.py"],
    "ringpull.torch": ["torch.py", "backward.py"],
    "ringpull.mxnet": ["mxnet/__init__.py", "mxnet/registry.py", "mxnet/store.py"],
    "ringpull.horovod": ["horovod/__init__.py", "horovod/running.py", "horovod/basics.py", "horovod/process_sets.py", "horovod/exceptions.py"],
    "ringpull.horovod.elastic": ["horovod/elastic.py"],
    "ringpull.horovod.torch": [f"horovod/torch/{name}.py" for name in OF_HOROVOD_TORCH],
    "ringpull.horovod.torch.elastic": ["horovod/torch/elastic.py"],
    "ringpull.horovod.mxnet": [f"horovod/mxnet/{name}.py" for name in ("__init__", "mpi_ops", "training")],
    "ringpull.horovod.keras": [f"horovod/keras/{name}.py" for name in ("__init__", "reducing", "callbacks")],
    "ringpull.horovod.keras.elastic": ["horovod/keras/elastic.py"],
}

#: The names that the package's modules export to each other, and not to users.
INSIDE = {"as_horovod_error", "leave_at_exit", "reduced", "warn_of_separate_models", "Gradients", "Member", "Reduction", "as_real", "combine", "names_of", "parameters_of"}


def prose(node):
    """A docstring as Markdown: code in single backticks, names without roles, and indented lines as text."""
    text = ast.get_docstring(node) or ""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"^((?: {4}.*\n?|\n(?= {4}))+)", lambda code: f"\n```text\n{textwrap.dedent(code[1]).strip()}\n```\n", text, flags=re.MULTILINE)


def signature(function, name):
    """`name(arguments) -> result`, without `self`."""
    arguments = ast.unparse(function.args)
    arguments = re.sub(r"^(self|cls)(, |$)", "", arguments)
    result = f" -> {ast.unparse(function.returns)}" if function.returns is not None else ""
    return f"{name}({arguments}){result}"


def is_property(function):
    return any(ast.unparse(decorator) == "property" for decorator in function.decorator_list)


def is_overload(function):
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


def functions(body):
    return [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not is_overload(node)]


def fields(node):
    """The public attributes of a class with their defaults."""
    found = [line for line in node.body if isinstance(line, ast.AnnAssign) and not line.target.id.startswith("_")]
    return [f"- `{ast.unparse(line)}`" for line in found]


def class_page(node):
    bases = [name for name in map(ast.unparse, node.bases) if not name.startswith("Protocol")]
    lines = [f"### {node.name}", "", f"`class {node.name}({', '.join(bases)})`" if bases else f"`class {node.name}`"]
    lines += ["", prose(node)] if prose(node) else []
    lines += ["", *fields(node)] if fields(node) else []
    for made in node.body:
        # Only a class that a user can make has arguments here. A class whose objects are returned by functions is made from a native object.
        if isinstance(made, ast.FunctionDef) and made.name in ("__init__", "__new__") and "_native" not in ast.unparse(made):
            lines += ["", f"Made by `{signature(made, node.name).partition(' -> ')[0]}`."]
    for function in functions(node.body):
        shown = function.name if is_property(function) else signature(function, function.name)
        kind = "property " if is_property(function) else ""
        lines += ["", f"#### {kind}`{shown}`"] + (["", prose(function)] if prose(function) else [])
    return lines


def exported(tree):
    """The names of `__all__`. All public names if a file has no `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value)) - INSIDE
    return {node.name for node in tree.body if hasattr(node, "name") and not node.name.startswith("_")}


def reference():
    lines = [
        "# Python",
        "",
        "<!-- Made by `RENEW=1 pytest python/tests/test_book.py -k reference`. -->",
        "",
        "Every public class and function, with the documentation of the sources. [NumPy, JAX, any array](../how-to/python.md)",
        "shows their use together.",
    ]
    for module, names in MODULES.items():
        lines += ["", f"## {module}"]
        trees = [ast.parse((ROOT / "python/ringpull" / name).read_text()) for name in names]
        if module != "ringpull":
            lines += ["", prose(trees[0])]
        shown = [node for tree in trees for node in tree.body if getattr(node, "name", None) in exported(tree)]
        for node in sorted(shown, key=lambda node: isinstance(node, ast.ClassDef)):
            if isinstance(node, ast.ClassDef):
                lines += ["", *class_page(node)]
            else:
                lines += ["", f"### {node.name}", "", f"`{signature(node, node.name)}`", "", prose(node)]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def test_the_reference_is_what_the_sources_say():
    page, text = ROOT / "docs/reference/python.md", reference()
    if os.environ.get("RENEW"):
        page.write_text(text)
    hint = "hint: run this test with RENEW=1, look at the difference, and commit it"
    assert page.read_text() == text, hint


def test_the_reference_has_every_public_name():
    import ringpull

    text = reference()
    missing = [name for name in ringpull.__all__ if not re.search(rf"^### {name}$", text, re.MULTILINE) and name not in ("Key", "errors", "__version__")]
    assert not missing
