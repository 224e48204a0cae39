"""A script that uses multiprocessing, and makes its store whenever it is imported."""

import multiprocessing

import ringpull

store = ringpull.create("dist_sync_mpi")


def place():
    return store.rank, store.num_workers


def use(_):
    try:
        store.barrier()
    except ringpull.InheritedError as error:
        return str(error)


if __name__ == "__main__":
    for method in "spawn", "forkserver":
        with multiprocessing.get_context(method).Pool(1) as pool:
            found = pool.apply(place), pool.apply(use, (0,))
        assert found[0] == (store.rank, store.num_workers) and "only inherited" in found[1], found
    store.barrier()
    print("ranks", store.num_workers)
