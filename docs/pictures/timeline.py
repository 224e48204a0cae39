#!/usr/bin/env python3
"""Draws one step of a merged timeline: each rank's computing, its waits, and its sums on the wire.

    ringpull lab up 4 200mbit
    ringpull launch -n 4 -s 0 --launcher lab --env RINGPULL_TIMELINE=$PWD/trace.json -- \\
      ringpull bench train --model vgg16 --scale 0.02 --compute 0.6 --iters 3
    ringpull lab down
    ringpull top trace.*.json --out merged.json
    docs/pictures/timeline.py merged.json >docs/pictures/timeline.svg
"""

import json
import sys

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 76, 24, 78, 62

STYLE = """
svg { --paper: #fbfaf7; --ink: #1d1f24; --soft: #5f636d; --rule: #dcd9d1; --back: #3d6fb5; --fore: #7a4f9a; --wait: #dcd9d1; --wire: #0b6e69; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #16181c; --ink: #e8e6e1; --soft: #a2a5ad; --rule: #34373d; --back: #7ea9e6; --fore: #b78bd9; --wait: #34373d; --wire: #3fb5ad; }
}
text { fill: var(--ink); font: 12px ui-sans-serif, system-ui, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; }
text.soft { fill: var(--soft); }
text.title { font-size: 15px; font-weight: 650; }
line { stroke: var(--rule); }
rect.paper { fill: var(--paper); }
rect.back { fill: var(--back); } rect.fore { fill: var(--fore); } rect.wait { fill: var(--wait); } rect.wire { fill: var(--wire); }
rect.layer { stroke: var(--paper); stroke-width: .6; }
"""


def spans(events):
    """The complete spans of a file: (rank, category, name, start, end) in milliseconds."""
    for event in events:
        if "dur" in event:
            start = event["ts"] / 1e3
            yield event["pid"], event.get("cat"), event["name"], start, start + event["dur"] / 1e3


def step_of(found):
    """The beginning and the end of the last whole step of rank 0. A step lasts from one backward pass of the last layer to the next."""
    last_layer = sorted(start for rank, kind, name, start, _ in found if (rank, kind, name) == (0, "compute", "fc8"))
    # A layer computes twice in a step: backward at the step's beginning, and forward at its end.
    begins = last_layer[::2]
    return begins[-2], begins[-1]


def main():
    with open(sys.argv[1]) as file:
        merged = json.load(file)
    found = list(spans(merged["traceEvents"] if isinstance(merged, dict) else merged))
    begin, end = step_of(found)
    ranks = sorted({rank for rank, *_ in found})
    height = TOP + ROW * len(ranks) + 34

    def at(moment):
        return LEFT + (moment - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)

    def bar(kind, start, stop, y, thickness, more=""):
        start, stop = max(start, begin), min(stop, end)
        if stop > start:
            print(f'<rect class="{kind}{more}" x="{at(start):.1f}" y="{y}" width="{max(at(stop) - at(start), 0.4):.1f}" height="{thickness}"/>')

    title = "One step of four ranks"
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">')
    print(f'<title>{title}</title>\n<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="100%" rx="8"/>')
    print(f'<text class="title" x="24" y="30">{title}</text>')
    for x, kind, words in ((24, "back", "backward pass"), (146, "fore", "forward pass"), (258, "wait", "waits for a sum"), (386, "wire", "sums on the wire")):
        print(f'<rect class="{kind}" x="{x}" y="46" width="11" height="11" rx="2"/><text class="soft" x="{x + 17}" y="56">{words}</text>')
    for index, rank in enumerate(ranks):
        y = TOP + ROW * index
        print(f'<text class="soft" x="24" y="{y + 15}">rank {rank}</text>')
        computing = sorted((start, stop) for who, kind, _, start, stop in found if who == rank and kind == "compute")
        layers = len({name for who, kind, name, *_ in found if who == rank and kind == "compute"})
        bar("wait", begin, end, y, 20)
        for number, (start, stop) in enumerate(computing):
            bar("back" if number % (2 * layers) < layers else "fore", start, stop, y, 20, " layer")
        sums = sorted((start, stop) for who, kind, _, start, stop in found if who == rank and kind == "collective" and stop > begin and start < end)
        for number, (start, stop) in enumerate(sums):
            bar("wire", start, stop, y + 24 + 5 * (number % 4), 4)
    y = TOP + ROW * len(ranks) + 6
    for part in range(5):
        moment = begin + (end - begin) * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        print(f'<line x1="{at(moment):.1f}" x2="{at(moment):.1f}" y1="{TOP - 6}" y2="{y}"/>')
        print(f'<text class="soft" x="{at(moment):.1f}" y="{y + 16}" text-anchor="{anchor}">{moment - begin:.0f} ms</text>')
    print("</svg>")


main()
