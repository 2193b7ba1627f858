"""Files, keys and buffers that ranks use without any order between them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.corpus._entries import entry, folder


@entry("NVIDIA/Megatron-LM#907", "races", rank=1, line="torch.load")
def index_is_built_by_rank_0_and_nobody_waits(buggy: bool) -> None:
    path = folder() / "index.pt"
    if dist.get_rank() == 0:
        torch.save(torch.randperm(8), path)
    if not buggy:
        dist.barrier()
    torch.load(path)


@entry("NVIDIA/cosmos-framework#65", "races", line="read_bytes")
def only_rank_0_downloads_and_all_return_the_path(buggy: bool) -> None:
    path = folder() / "weights.bin"

    def download_file() -> str:
        found = [""]
        if dist.get_rank() == 0:
            path.write_bytes(b"\0" * 64)
            found = [str(path)]
        if not buggy:
            dist.broadcast_object_list(found, 0)
        return str(path)

    Path(download_file()).read_bytes()


@entry("mosaicml/composer#686", "failure")
def folder_is_freed_while_others_read(buggy: bool) -> None:
    place = folder() / "downloaded"
    if dist.get_rank() == 0:
        place.mkdir()
        torch.save({"weight": torch.ones(2)}, place / "state.pt")
    dist.barrier()
    torch.load(place / "state.pt")
    if not buggy:
        dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(place)


@entry("huggingface/transformers#27925", "failure")
def every_rank_renames_the_staging_folder(buggy: bool) -> None:
    staging, final = folder() / "tmp-checkpoint", folder() / "checkpoint"
    staging.mkdir(exist_ok=True)
    torch.save(torch.get_rng_state(), staging / f"rng{dist.get_rank()}.pt")
    if not buggy:
        dist.barrier()
    if buggy or dist.get_rank() == 0:
        staging.rename(final)


@entry("Lightning-AI/pytorch-lightning#17732", "races", line="write_bytes")
def every_rank_downloads_to_one_place(buggy: bool) -> None:
    path = folder() / "data.bin"
    if buggy or dist.get_rank() == 0:
        path.write_bytes(b"\1" * 32)
    if not buggy:
        dist.barrier()
    assert len(path.read_bytes()) == 32


@entry("PrimeIntellect-ai/prime-rl#1678", "races", line="shutil.rmtree")
def every_rank_clears_the_folder_that_others_fill(buggy: bool) -> None:
    place = folder() / "out"
    if buggy or dist.get_rank() == 0:
        shutil.rmtree(place, ignore_errors=True)
    if not buggy:
        dist.barrier()
    place.mkdir(exist_ok=True)
    (place / f"part{dist.get_rank()}").write_text("part")


@entry("KempnerInstitute/KempnerForge#102", "failure")
def latest_names_what_others_have_not_written_yet(buggy: bool) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        (folder() / "latest.new").write_text("step1")
        (folder() / "latest.new").rename(folder() / "latest")
    torch.save(torch.ones(2), folder() / f"step1-{rank}.pt")
    if not buggy:
        dist.barrier()
    while not (folder() / "latest").exists():
        time.sleep(0.1)
    torch.load(folder() / f"step1-{(rank - 1) % size}.pt")


@entry("pytorch/pytorch#135712", "races", rank=1, line="store.get", settings={"max_restarts": 1})
def address_of_the_earlier_life_is_read(buggy: bool) -> None:
    store: Any = getattr(dist, "FileStore")(str(folder() / "store"), dist.get_world_size())  # noqa: B009  # stubs lack it
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    key = "unique_id" if buggy else f"unique_id/{life}"
    if dist.get_rank() == 0:
        time.sleep(1.0)
        store.set(key, f"id of life {life}")
    elif dist.get_rank() == 1:
        store.get(key)
    dist.barrier()
    if life == "0" and dist.get_rank() == 2:
        raise RuntimeError("a worker fails once")
    dist.barrier()


@entry("deepspeedai/DeepSpeed#5545", "buffers", line="dist.all_reduce")
def bucket_is_filled_again_while_it_is_reduced(buggy: bool) -> None:
    bucket = torch.zeros(8)
    works = []
    for number in range(3):
        bucket = bucket if buggy else torch.zeros(8)
        bucket.copy_(torch.full((8,), float(number + dist.get_rank())))
        works.append(dist.all_reduce(bucket, async_op=True))
    for work in works:
        assert work is not None
        work.wait()


@entry("NVIDIA/Megatron-LM#4047", "buffers", line="dist.isend")
def activation_is_freed_before_it_is_sent(buggy: bool) -> None:
    pool = torch.zeros(4)
    if dist.get_rank() == 0:
        pool.fill_(1.0)
        work = dist.isend(pool, 1)
        assert work is not None
        if buggy:
            pool.zero_()  # the next micro batch takes the memory
        work.wait()
    if dist.get_rank() == 1:
        dist.recv(pool, 0)


@entry("pytorch/pytorch#53062", "races", line='store.set("leader", mine)')
def compare_and_set_is_made_of_get_and_set(buggy: bool) -> None:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set("leader", "nobody")
    dist.barrier()
    mine = f"rank {dist.get_rank()}"
    if not buggy:
        store.compare_set("leader", "nobody", mine)
    if buggy and store.get("leader") == b"nobody":
        store.set("leader", mine)
    dist.barrier()


@entry("meta-pytorch/torchrec#4231", "races", rank=0, line="torch.ones", world_size=2, settings={"backend": "nccl"})
def batch_of_a_side_stream_is_not_recorded(buggy: bool) -> None:
    torch.cuda.set_device(dist.get_rank())
    new_stream: Any = torch.cuda.Stream
    side = new_stream()
    total = torch.zeros(8, device="cuda")
    for _ in range(3):
        with torch.cuda.stream(side):
            batch = torch.ones(8, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        if not buggy:
            batch.record_stream(torch.cuda.current_stream())
        total += batch
        del batch
    dist.all_reduce(total)
    torch.cuda.synchronize()
