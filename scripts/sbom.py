"""Writes the software bill of materials of our binaries, CycloneDX 1.5, from the lines of `cargo tree`: name, version, license.

Debian's packages in an image need no list from us: scanners read dpkg's list.
"""

import json
import re
import sys


def component(line: str) -> dict:
    package, _, license_ = line.partition("\t")
    name, version = re.match(r"(\S+) v(\S+)", package).groups()
    own = name.startswith("ringpull")
    return {
        "type": "application" if own else "library",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
        "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", license_.strip()) or "NOASSERTION"}],
    }


lines = {re.sub(r" \(.*?\)", "", line) for line in sys.stdin.read().splitlines() if line.strip()}
components = sorted((component(line) for line in lines), key=lambda one: (one["name"], one["version"]))
bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
json.dump(bill, sys.stdout, indent=1)
print()
