"""The ways in which ranks find the store of rank 0."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

from ringpull.errors import KVStoreError  # noqa: E402
from ringpull.torch_distributed import meeting  # noqa: E402


def test_a_store_is_taken_by_its_proof_and_not_by_its_address() -> None:
    def store(proof: str) -> Any:
        made = meeting._distributed.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=60), wait_for_workers=False)
        made.set(meeting._PROOF, proof)
        return made

    other, own = store("other"), store("own")
    own.set("key", "value")
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = [closed.getsockname()[1], silent.getsockname()[1], other.port, own.port]
        places = [("127.0.0.1", port) for port in ports]
        assert meeting._joined(places, b"own", 2, timedelta(seconds=60)).get("key") == b"value"
        with pytest.raises(KVStoreError, match=f"127.0.0.1 port {other.port}\n  hint: open the ports"):
            meeting._joined([places[0], places[2]], b"own", 2, timedelta(seconds=60))
