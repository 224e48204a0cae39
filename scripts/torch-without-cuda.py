"""Makes it possible to import PyPI's PyTorch for Linux without CUDA's libraries, which are gigabytes: for tests on CPUs.

    VENV/bin/pip install --no-deps torch && VENV/bin/python scripts/torch-without-cuda.py

For every missing library that PyTorch's own libraries need, the script compiles a replacement beside them. The
replacement's functions return what CUDA's return without a device, so `torch.cuda.is_available()` is False. Needs a C
compiler, `nm` and `readelf`."""

import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict

#: `cudaErrorNoDevice`.
NO_DEVICE = 100

folder = pathlib.Path(sysconfig.get_path("platlib"), "torch/lib")
ours = sorted(path for path in folder.glob("*.so*") if path.is_file())


def printed(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def symbols(*words):
    """Returns the symbols as `NAME` or `NAME@VERSION`, as `nm` prints them."""
    return {
        re.sub("@@", "@", line.split()[-1]) for path in ours for line in printed("nm", "-D", *words, path).splitlines()
    }


def function(name):
    """Returns the C code of a function that does nothing. If it should return the text of an error, it returns some text."""
    if re.search(r"Get\w*Error(String|Name)$", name):
        return f'const char *{name}(void) {{ return "no device"; }}\n'
    return f"int {name}(void) {{ return {NO_DEVICE}; }}\n"


system = {line.split()[0] for line in printed("/sbin/ldconfig", "-p").splitlines()[1:]}
needed = {name for path in ours for name in re.findall(r"\(NEEDED\).*\[(.*)\]", printed("readelf", "-d", path))}
missing = sorted(needed - system - {path.name for path in ours})
if not missing:
    sys.exit(0)

defined = {name.partition("@")[0] for name in symbols("--defined-only")}
versions = defaultdict(lambda: defaultdict(set))
for path in ours:
    library = None
    for line in printed("readelf", "-V", "-W", path).splitlines():
        if found := re.search(r"Version: 1 +File: (\S+)", line):
            library = found[1]
        elif (found := re.search(r"Name: (\S+) +Flags", line)) and library in missing:
            versions[library][found[1]] = set()
of_version = {version: library for library, known in versions.items() for version in known}
loose = set()
for name in symbols("--undefined-only"):
    name, _, version = name.partition("@")
    if version in of_version:
        versions[of_version[version]][version].add(name)
    elif not version and name not in defined:
        loose.add(name)

with tempfile.TemporaryDirectory() as build:
    code, script = pathlib.Path(build, "none.c"), pathlib.Path(build, "none.map")
    for library in missing:
        groups = dict(versions[library])
        # Names without a version, which could belong to any library, go into the first.
        named = set().union(*groups.values(), loose if library == missing[0] else set())
        code.write_text("".join(function(name) for name in sorted(named)))
        blocks = [
            f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
            for version, names in groups.items()
        ]
        script.write_text("".join(blocks))
        words = [f"-Wl,--version-script={script}"] if blocks else []
        # Some names are those of functions of the C library, with other types.
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-O1",
                "-w",
                "-fno-builtin",
                "-nostdlib",
                "-o",
                folder / library,
                code,
                f"-Wl,-soname,{library}",
                *words,
            ],
            check=True,
        )
# Otherwise pip would fetch CUDA's packages with the next package that needs PyTorch.
for metadata in folder.parent.parent.glob("torch-*.dist-info/METADATA"):
    metadata.write_text(re.sub(r"^Requires-Dist: (nvidia|cuda|triton).*\n", "", metadata.read_text(), flags=re.MULTILINE))
print(f"{len(missing)} libraries of CUDA stand beside PyTorch's own: {' '.join(missing)}", file=sys.stderr)
