"""Runs programs with an optimizer of PyTorch: bare, and with gradients that are combined over the ranks. Both runs must end with the same
values.

    torch_optimizers.py FRONT[:KIND] [WORDS]

A front is ``ringpull`` or ``horovod``. KIND is the kind of its store. Gradients differ between ranks until they are averaged.
With words, only programs run whose names have one of the words.
"""

import sys

import torch
from optimizer_programs import PROGRAMS, Run


def equal(got, expected, is_exact):
    if isinstance(expected, torch.Tensor):
        # The parts that differ between ranks are rounded before they cancel out.
        coarse = expected.element_size() < 4
        return torch.equal(got, expected) if is_exact else torch.allclose(got.float(), expected.float(), 1e-4, 1e-2 if coarse else 2e-5)
    return got == expected


def wrappers(front):
    """The front's function that wraps an optimizer, this rank, and the number of ranks."""
    if front == "horovod":
        import ringpull.horovod.torch as hvd

        hvd.init()

        def by_horovod(optimizer, is_fp16=False, is_adasum=False, is_sum=False, **options):
            options |= {"compression": hvd.Compression.fp16} if is_fp16 else {}
            return hvd.DistributedOptimizer(optimizer, op=hvd.Adasum if is_adasum else hvd.Sum if is_sum else hvd.Average, **options)

        return by_horovod, hvd.rank(), hvd.size()
    import ringpull
    import ringpull.torch

    store = ringpull.create(front.partition(":")[2] or "local")
    return (lambda optimizer, *words: ringpull.torch.DistributedOptimizer(optimizer, store, *words)), store.rank, store.num_workers


def differences(front, words=()):
    """The programs that end with other values with this front than without it."""
    wrap, rank, ranks = wrappers(front)
    found = {}
    for name, (function, fronts) in PROGRAMS.items():
        if front.partition(":")[0] not in fronts or not any(word in name for word in words or [""]):
            continue
        expected = function(Run())
        try:
            got = function(Run(wrap, rank, ranks))
        except Exception as error:
            if ranks > 1:
                raise
            found[name] = repr(error)
            continue
        is_exact = ranks == 1 and "fp16" not in name and "adasum" not in name
        if len(got) != len(expected) or not all(equal(one, other, is_exact) for one, other in zip(got, expected)):
            found[name] = f"{got} and not {expected}"
    return found


if __name__ == "__main__":
    front, *words = sys.argv[1:]
    for name, what in differences(front, words).items():
        print(f"{front}: {name}: {what}", flush=True)
    print("that is all", flush=True)
