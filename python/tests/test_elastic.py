"""Tests elastic jobs: states, snapshots and samplers, and a job that loses a rank and gets it back."""

import os
import re
import stat
import sys

import numpy
import pytest

import ringpull
from ranks import HAS_IMAGES, HERE, ROOT, ended, job, ringpull_binary, start
from ranks import run as run_command
from ringpull.elastic import Sampler, State, run
from ringpull.elastic.packing import is_whole, packed, unpacked
from ringpull.elastic.snapshots import Snapshots


def content(value):
    return b"".join(packed(value))


def test_a_value_comes_back_from_its_bytes_and_changed_bytes_are_found():
    value = {"a": numpy.arange(5, dtype=numpy.float32), "b": [1, "two"], "empty": numpy.zeros((0, 3))}
    kept = content(value)
    assert is_whole(kept)
    got = unpacked(kept)
    assert got["b"] == [1, "two"] and (got["a"] == value["a"]).all() and got["empty"].shape == (0, 3)
    got["a"] += 1
    for at in range(len(kept)):
        changed = bytearray(kept)
        changed[at] ^= 1
        assert not is_whole(changed), at
    assert not any(is_whole(kept[:length]) for length in range(len(kept)))


def test_the_newest_two_snapshots_stay_and_a_half_one_does_not_count(tmp_path):
    snapshots = Snapshots(tmp_path / "job", 1)
    assert snapshots.keys() == [] and snapshots.read((0, 1)) is None
    snapshots.prepare()
    for number in range(1, 5):
        snapshots.write((1, number), packed(list(range(10 - number))))
    assert snapshots.keys() == [(1, 4), (1, 3)]
    assert unpacked(snapshots.read((1, 4))) == list(range(6))
    assert stat.S_IMODE(snapshots.folder.stat().st_mode) == 0o700
    # A rank that is killed while it writes leaves a file with another name. A file that faulty memory has changed is not read.
    (snapshots.folder / "part-1").write_bytes(b"half" * 1000)
    assert snapshots.keys() == [(1, 4), (1, 3)]
    path = snapshots.folder / "snapshot-1-4"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert snapshots.read((1, 4)) is None and snapshots.read((1, 3)) is not None
    # Every snapshot of a later generation is later, whatever its number is.
    later = Snapshots(tmp_path / "job", 2)
    later.prepare()
    later.write((2, 1), packed("later"))
    assert later.keys() == [(2, 1), (1, 4)]
    assert sorted(path.name for path in later.folder.iterdir()) == ["snapshot-1-4", "snapshot-2-1"], "the half one is gone"
    with pytest.raises(ringpull.errors.FileError, match="generation 2, and this process is one of 1"):
        snapshots.write((1, 5), packed("late"))


def test_a_folder_that_others_may_write_is_an_error(tmp_path):
    (tmp_path / "job").mkdir()
    os.chmod(tmp_path / "job", 0o777)
    with pytest.raises(ringpull.errors.FileError, match="others have rights"):
        Snapshots(tmp_path / "job", 0).prepare()
    with pytest.raises(ringpull.errors.FileError, match="hint: start the job with --snapshots"):
        Snapshots("/proc/none", 0).prepare()


def test_a_snapshot_in_a_folder_that_others_may_write_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("ringpull._native.elastic", lambda: (os.fspath(tmp_path / "job"), 1))
    monkeypatch.setattr("ringpull.elastic.state._owner", [])
    state = State(step=0)
    planted = Snapshots(tmp_path / "job", 0)
    planted.prepare()
    planted.write((0, 9), packed({"step": 5}))
    for folder in (planted.job, planted.folder):
        os.chmod(folder, 0o777)
        with pytest.raises(ringpull.errors.FileError, match="others have rights"):
            state.resume()
        os.chmod(folder, 0o700)
    assert state.resume() and state.step == 5


def test_a_job_that_is_not_elastic_keeps_its_last_commit_in_the_process():
    weights = numpy.zeros(3)
    state = State(weights=weights, step=0, notes=["a"], sampler=Sampler(10))
    state.restore()
    state.step, state.notes = 4, ["b"]
    weights += 1
    state.sampler.position = 6
    state.commit()
    state.step, state.notes = 5, ["c"]
    weights += 1
    state.sampler.position = 8
    state.restore()
    assert state.step == 4 and state.notes == ["b"] and state.sampler.position == 6
    assert state.weights is weights and (weights == 1).all(), "arrays are written in place"
    with pytest.raises(ringpull.ArgumentError, match="commit"):
        State(commit=1)


def test_a_store_s_optimizer_states_are_part_of_a_state():
    store = ringpull.create("local")
    store.set_optimizer(ringpull.SGD(learning_rate=1, momentum=0.5))
    value = numpy.zeros(2, numpy.float32)
    store.init("w", value)
    state = State(store=store)

    def step():
        store.push("w", numpy.ones(2, numpy.float32))
        store.pull("w", out=value)
        return value[0]

    step()
    state.commit()
    before = value[0]
    first = step() - before
    state.restore()
    before = value[0]
    assert step() - before == first, "the momentum is that of the commit"


def test_gluon_s_blocks_and_trainers_and_arrays_are_part_of_a_state():
    mx = pytest.importorskip("mxnet")
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None)
    array = mx.nd.zeros(2)
    state = State(net=net, trainer=trainer, array=array)

    def step():
        with mx.autograd.record():
            loss = (net(mx.nd.ones((1, 2))) ** 2).sum()
        loss.backward()
        trainer.step(1)
        array[:] += 1
        return net.weight.data().asnumpy()

    step()
    state.commit()
    second = step()
    state.restore()
    assert (array.asnumpy() == 1).all() and state.array is array
    assert (step() == second).all(), "weights and momentum are those of the commit"


@pytest.mark.parametrize("sizes", [[3, 2, 3], [1, 4], [5]])
def test_each_sample_is_taken_once_whatever_the_number_of_ranks(sizes):
    epoch, length, batch = 4, 101, 7
    seen = numpy.zeros(length, int)
    position, steps = 0, 0
    for number, size in enumerate(sizes):
        samplers = [Sampler(length, seed=9) for _ in range(size)]
        shares = []
        for rank, sampler in enumerate(samplers):
            sampler.load_state_dict({"epoch": epoch, "position": position})
            shares.append(sampler.batches(batch, rank, size))
        is_last = number == len(sizes) - 1
        for parts in zip(*shares, strict=True):
            numpy.add.at(seen, numpy.concatenate(parts), 1)
            steps += 1
            assert len({sampler.position for sampler in samplers}) == 1
            if not is_last and steps % 4 == 0:
                break
        position = samplers[0].position
    assert (seen == 1).all() and steps == -(-length // batch) and position == length


def test_every_epoch_has_an_order_of_its_own_which_is_the_same_everywhere():
    orders = []
    for epoch in range(3):
        one, other = Sampler(50, seed=1), Sampler(50, seed=1)
        one.set_epoch(epoch)
        other.set_epoch(epoch)
        assert (one.order() == other.order()).all()
        orders.append(tuple(one.order()))
    assert len(set(orders)) == 3 and tuple(Sampler(5, shuffle=False).order()) == (0, 1, 2, 3, 4)


def test_run_gives_the_result_and_other_errors():
    state = State(step=1)
    assert run(lambda state, more: state.step + more)(state, 2) == 3
    with pytest.raises(ZeroDivisionError):
        run(lambda state: 1 / 0)(state)


def test_a_model_and_its_optimizer_go_on_from_the_commit():
    torch = pytest.importorskip("torch")
    import ringpull.horovod.torch as hvd

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scale = torch.nn.Parameter(torch.ones(2))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0, halves=torch.ones(2, dtype=torch.bfloat16), scale=scale)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        state.batch += 1
        return model.weight.detach().clone()

    step()
    state.halves += 1
    state.commit()
    second = step()
    state.halves += 1
    scale.data += 1
    state.restore()
    assert state.scale is scale and torch.equal(scale.data, torch.ones(2)), "a parameter is what an optimizer holds"
    assert state.batch == 1 and torch.equal(state.halves, torch.full((2,), 2, dtype=torch.bfloat16))
    assert torch.equal(step(), second), "weights and momentum are those of the commit"
    assert torch.equal(unpacked(content({"a": torch.arange(6).reshape(2, 3)}))["a"], torch.arange(6).reshape(2, 3))
    turned = torch.tensor([1 + 2j, 3j]).conj()
    assert torch.equal(unpacked(content(turned)), turned) and torch.equal(unpacked(content(turned.imag)), turned.imag)
    assert hvd.HostsUpdatedInterrupt is ringpull.elastic.HostsUpdatedInterrupt


def test_an_elastic_sampler_divides_what_is_left(monkeypatch):
    pytest.importorskip("torch")
    from ringpull.horovod.torch import elastic

    def samplers(size, states=None):
        made = []
        for rank in range(size):
            monkeypatch.setattr(elastic, "place", lambda rank=rank: (rank, size))
            made.append(elastic.ElasticSampler(range(20), seed=4))
            if states is not None:
                made[-1].load_state_dict(states)
        return made

    three = samplers(3)
    for sampler in three:
        assert len(sampler) == 7
        sampler.record_batch(0, 4)
    taken = sorted(sum((list(sampler)[:4] for sampler in three), []))
    state = three[0].state_dict()
    assert all(sampler.state_dict() == state for sampler in three) and three[0].processed_num == 12
    two = samplers(2, state)
    left = sum((list(sampler) for sampler in two), [])
    assert sorted(taken + left) == list(range(20)), "every sample once, if they can be divided equally"
    assert len(two[0]) == len(two[1]) == 4
    # 20 samples are divided over 3 ranks. Each rank has 7, so one sample is repeated.
    everything = sum((list(sampler) for sampler in three), [])
    assert set(everything) == set(range(20)) and len(everything) == 21
    two[0].set_epoch(1)
    assert len(two[0]) == 10 and list(two[0]) != two[1].indices and two[0].processed_num == 0
    # The last batch of an epoch may have fewer samples than are counted.
    three[0].load_state_dict({"epoch": 0, "processed_num": 24})
    assert list(three[0]) == []


def test_a_state_goes_back_to_what_all_ranks_agreed_on_before_the_first_commit():
    pytest.importorskip("torch")
    import ringpull.horovod.torch as hvd

    sampler = hvd.elastic.ElasticSampler(range(8))
    weights = numpy.zeros(2)
    state = hvd.elastic.TorchState(weights=weights, step=0, sampler=sampler)
    sampler.record_batch(0, 2)
    assert len(sampler) == 8, "the loop of this epoch goes on as it is"
    state.sync()
    assert len(sampler) == 6, "the remaining samples are divided anew"
    for _ in range(2):
        state.step += 1
        weights += 1
        sampler.record_batch(1, 2)
        state.restore()
        assert (state.step, sampler.processed_num) == (0, 2) and (weights == 0).all() and state.weights is weights
    state.step = 7
    state.commit()
    state.step = 8
    state.restore()
    assert state.step == 7


#: A short form of the example in Horovod's documentation.
OF_HOROVOD = """
import horovod.torch as hvd
import torch
from horovod.common.elastic import ObjectState
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch.elastic import TorchState

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(list(range(8)), shuffle=False)
loader = torch.utils.data.DataLoader(range(8), batch_size=2, sampler=sampler)


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 2):
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch[:, None].float().expand(-1, 2)).sum().backward()
            optimizer.step()
            state.sampler.record_batch(number, 2)
            if number % 2:
                state.commit()
        print(state.epoch, number, state.sampler.processed_num)
        state.sampler.set_epoch(state.epoch + 1)


state = TorchState(model=model, optimizer=optimizer, epoch=0, sampler=sampler)
state.register_reset_callbacks([lambda: print("reset")])
train(state)
"""


def test_a_script_of_horovod_s_runs_without_a_change(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(OF_HOROVOD)
    status, output = run_command([sys.executable, "-m", "ringpull.horovod", tmp_path / "script.py"])
    assert status == 0 and output.splitlines() == ["0 3 8", "1 3 8"], output


def test_ranks_agree_on_the_newest_commit_that_a_host_has_whole(tmp_path):
    done = job(3, "resumed", RINGPULL_SNAPSHOTS=tmp_path / "snapshots", RINGPULL_GENERATION=2)
    for rank, printed in enumerate(done.ranks):
        assert printed.out == f"rank {rank} has the value of (1, 4)\n", f"{done}"
    # The first host now has this snapshot too, and still has its own.
    assert sorted(path.name for path in (tmp_path / "snapshots/h0").iterdir()) == ["snapshot-1-3", "snapshot-1-4"]


def said(folder, generation, rank):
    return (folder / f"said-{generation}-{rank}").read_text().splitlines()


def test_a_job_goes_on_with_a_rank_less_and_then_with_it_again(tmp_path):
    """The job has 3 ranks until one is killed at step 7, then 2 until a host is offered, then 3. The last commit before the loss is of step 6."""
    epochs, length, batch = 2, 100, 6
    (tmp_path / "hosts").write_text("localhost:3\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts\n")
    script.chmod(0o700)
    memory = tmp_path / "memory"
    memory.mkdir()
    options = ["--elastic", "--min-workers", 2, "--max-workers", 3, "--discover-hosts", script, "--snapshots", memory]
    program = [sys.executable, HERE / "jobs/elastic.py", tmp_path, epochs, length, batch]
    status, output = ended([ringpull_binary(), "launch", *options, "--", *program], 120, {"LOST_AT": 7})
    assert status == 0, output
    steps = epochs * -(-length // batch)
    assert said(tmp_path, 0, 0) == ["begins with 3 at step 0", *(f"has committed step {step}" for step in (2, 4, 6))], output
    for rank in range(2):
        words = said(tmp_path, 1, rank)
        assert words[0] == "begins with 2 at step 6" and words[-1] == "has committed step 10", output
    for rank in range(3):
        words = said(tmp_path, 2, rank)
        assert words[0].startswith("begins with 3 at step 1") and words[-1] == f"ends with 3 at step {steps}", output
    assert (numpy.load(tmp_path / "seen.npy") == 1).all(), "each sample of an epoch counts once"
    assert list(memory.iterdir()) == [], "nothing is left of the snapshots"
    for part in ["generation 0 has ended: lost rank 2", "3 to 2 workers", "generation 1 ends at its next commit, 2 to 3 workers", "generation 2: 2 to 3 workers"]:
        assert part in output, output


def test_servers_keep_the_values_while_a_worker_is_lost_and_another_comes(tmp_path):
    words = [ringpull_binary(), "launch", "--elastic", "-n", 3, "-s", 2, "--launcher", "local", "--"]
    done = start(words, 3, [sys.executable, HERE / "jobs/elastic_servers.py", tmp_path, "dist_sync"])
    assert done.status == 0, f"{done}"
    assert "worker 1 ended with signal 9; workers left: 2; another one starts in its place" in done.launcher, f"{done}"
    for rank in (0, 2):
        number = min(rank, 1)
        assert done.ranks[rank].out == f"0 {rank} 3 2 3.0 [(1, {number}, 2, [1]), (2, {rank}, 3, [])]\n", f"{done}"
    came_at, rest = done.ranks[1].out.split(" ", 1)
    assert 6 <= int(came_at) <= 10 and rest == "1 3 2 3.0 []\n", f"{done}"


def open_mpi_5():
    """An environment in which commands use an MPI with fault tolerance."""
    folder = ROOT / ".deps/openmpi5"
    if not (folder / "bin/mpirun").is_file():
        pytest.skip("no Open MPI with fault tolerance; scripts/setup --openmpi5 fetches it")
    return {"RINGPULL_MPIRUN": folder / "bin/mpirun", "LD_LIBRARY_PATH": folder / "lib"}


def in_place(tmp_path, way, least=2, options=(), pause=0):
    """Runs a job of 4 ranks that go on in their processes. Returns its exit code and its output. Checks that no snapshot is left."""
    memory = tmp_path / "memory"
    memory.mkdir()
    words = ["--elastic", "--in-place", "--min-workers", least, "-n", 4, "--snapshots", memory, *options]
    done = ended([ringpull_binary(), "launch", *words, "--", sys.executable, HERE / "jobs/in_place.py", way, pause], 120, open_mpi_5())
    assert list(memory.iterdir()) == [], done
    return done


@pytest.mark.parametrize("way", ["kill", "raise"])
def test_the_processes_that_are_left_go_on_from_the_commit(tmp_path, way):
    status, output = in_place(tmp_path, way)
    assert status == 0, output
    for number, rank in enumerate((0, 2, 3)):
        assert f"[rank {rank}] start 0: rank {rank} is {number} of 3, at step 26, reset at [5]\n" in output, output
    assert "goes on in place without rank 1: 3 ranks are left" in output and "generation 1" not in output, output
    assert ("LookupError: this rank has no data" in output) == (way == "raise"), output


@pytest.mark.parametrize("way", ["kill", "store"])
def test_a_job_that_cannot_go_on_in_place_starts_again(tmp_path, way):
    """A job with too few ranks, or with a store: no commit has the store's values."""
    status, output = in_place(tmp_path, way, least=4 if way == "kill" else 2)
    assert status == 0, output
    for rank in range(4):
        assert f"[rank {rank}] start 1: rank {rank} is {rank} of 4, at step 26, reset at [5]\n" in output, output
    assert ("3 ranks of this job survive, but it needs at least 4" in output) == (way == "kill"), output


@pytest.mark.parametrize("end", ["import missing", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_a_rank_that_ends_before_all_have_started_is_not_waited_for(tmp_path, end):
    """MPI waits for this rank in the other ranks, and `mpirun --with-ft ulfm` does not end them."""
    early = f"import os\nif (os.environ['RINGPULL_GENERATION'], os.environ['OMPI_COMM_WORLD_RANK']) == ('0', '1'): {end}\n"
    script = early + "import ringpull\nfrom ringpull.elastic import State, run\nringpull.communicator()\nrun(lambda state: print('done in', ringpull.elastic.generation()))(State(step=0))"
    words = ["--elastic", "--in-place", "--min-workers", 1, "-n", 3, "--snapshots", tmp_path]
    # If the rank has ended with success, the other ranks are not ended at once: they may not need MPI.
    variables = open_mpi_5() | ({"RINGPULL_SILENCE": "3"} if "exit" in end else {})
    status, output = ended([ringpull_binary(), "launch", *words, "--", sys.executable, "-c", script], 60, variables)
    assert status == 0 and output.count("] done in 1\n") == 3, output
    assert "rank 1 has ended before all ranks had started MPI" in output and list(tmp_path.iterdir()) == [], output
    how = {"i": "rank 1 on this host failed with exit code 1", "k": "lost rank 1 on this host (signal 9)", "_": "exit code"}[end.removeprefix("os.")[0]]
    assert f"generation 0 has ended: {how}" in output, output


@pytest.mark.parametrize("way", ["everyone", "end"])
def test_a_job_of_which_no_rank_comes_to_its_end_has_failed(tmp_path, way):
    """`mpirun --with-ft ulfm` reports success when all processes are gone."""
    status, output = in_place(tmp_path, way)
    assert status == 1, output
    assert "none of its ranks has come to its end" in output and "the job ends: it has failed 3 times" in output, output


def test_a_host_gets_another_rank_in_the_place_of_a_lost_one_after_a_while(tmp_path):
    status, output = in_place(tmp_path, "kill", options=["--cooldown", 1, 60], pause=0.2)
    assert status == 0, output
    assert "goes on in place without rank 1" in output and "there is room for a lost rank: generation 0 ends at its next commit, 3 to 4 workers" in output, output
    for rank in range(4):
        assert f"[rank {rank}] start 1: rank {rank} is {rank} of 4, at step 26, reset at [" in output, output


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
@pytest.mark.parametrize("options", [["--in-place"], []])
def test_the_elastic_example_of_horovod_goes_on_without_a_lost_rank(options):
    """The job goes on in its processes, with its optimizer, or in new processes."""
    pytest.importorskip("torch")
    words = ["--elastic", *options, "--min-workers", 2, "-n", 3, "--cooldown", 60, 60]
    script = [HERE / "jobs/in_place_horovod.py", ROOT / "examples/horovod/torch_elastic.py", "--limit-train", 960, "--limit-test", 200, "--commit", 5]
    status, output = ended([ringpull_binary(), "launch", *words, "--", sys.executable, *script], 240, open_mpi_5() if options else {})
    assert status == 0, output
    left = 2 if options else 3
    # After 5 of the 20 batches of 3 ranks, the commit leaves 720 images.
    assert re.findall(r"(\d) ranks at epoch (\d) batch (\d+)", output) == [("3", "0", "0"), (str(left), "0", "5")], output
    ends = re.findall(r"rank (\d) of (\d) weights (\w+)", output)
    assert sorted(end[:2] for end in ends) == [(str(rank), str(left)) for rank in range(left)] and len({end[2] for end in ends}) == 1, output
    assert len(re.findall(r"epoch 2 accuracy", output)) == 1, output


def lose_rank_0(word):
    """A job of three ranks, on an MPI with fault tolerance, that loses rank 0."""
    found = open_mpi_5()
    names = {name: "1" for name in ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "RINGPULL_ELASTIC")}
    launcher = [found.pop("RINGPULL_MPIRUN"), "--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none", "-n", 3]
    return start(launcher, 3, [sys.executable, HERE / "jobs/lost.py", word], **found, **names)


def test_a_program_is_told_who_was_lost_and_goes_on():
    done = lose_rank_0("go on")
    for rank in (1, 2):
        assert done.ranks[rank].out == f"ended 1 {rank - 1} 2 [(1, {rank - 1}, 2, [0])] [6.0, 7.0]\n", f"{done}"


def test_a_program_may_stop_when_it_is_told():
    done = lose_rank_0("stop")
    for rank in (1, 2):
        # The result of the sum that was under way when the rank was lost may be printed before.
        told = f"stopped 1 {rank - 1} 2 [(1, {rank - 1}, 2, [0])]"
        assert done.ranks[rank].out in (f"{told} [7.0]\n", f"{told} [6.0, 7.0]\n"), f"{done}"
