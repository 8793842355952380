"""DeepSpeed's async_io on a machine without libaio: a stand-in of its handle, for what is offloaded
to files.

deepspeed 0.19.8, ops/csrc/aio/py_lib/deepspeed_py_io_handle.cpp: a tensor is written to a file of
its own size, from its beginning; a read asserts that the file has all that is asked for. Buffers of
new_cpu_locked_tensor are posix_memalign's, locked by mlock: of the size that was asked for, and none
of PyTorch's pinned memory. Here they are pageable and counted apart, and a file is a hole of its
size, so that it takes no room.
"""

import os
import shutil
import tempfile

LOCKED = {}  # address: bytes
FOLDER = []


class Handle:
    def __init__(self, **_):
        self.pending = 0
        self.kept = {}

    def new_cpu_locked_tensor(self, elements, example):
        import torch
        made = torch.empty(int(elements), dtype=example.dtype)
        LOCKED[made.data_ptr()] = made.nbytes
        self.kept[made.data_ptr()] = made
        return made

    def free_cpu_locked_tensor(self, tensor):
        self.kept.pop(tensor.data_ptr(), None)
        return LOCKED.pop(tensor.data_ptr(), None) is not None

    def is_pinned(self, tensor):
        if tensor.device.type != "cpu":
            return False
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return tensor.is_pinned() or any(at <= begin and end <= at + size
                                         for at, size in LOCKED.items())

    def async_pwrite(self, tensor, path, offset):
        assert offset == 0
        with open(path, "wb") as f:
            f.truncate(tensor.nbytes)
        self.pending += 1
        return 0

    def async_pread(self, tensor, path, offset):
        assert offset == 0 and tensor.nbytes <= os.path.getsize(path), path
        self.pending += 1
        return 0

    def wait(self):
        done, self.pending = self.pending, 0
        return done


class Module:
    aio_handle = Handle


def install():
    """In place of the op that DeepSpeed would compile."""
    from deepspeed.ops.op_builder import AsyncIOBuilder
    AsyncIOBuilder.load = lambda self, verbose=False: Module


def folder():
    """Of this process: where the files go."""
    if not FOLDER:
        FOLDER.append(tempfile.mkdtemp(prefix="plimsoll-nvme-"))
    return FOLDER[0]


def used():
    """Bytes in locked buffers; files, and the bytes of all of them. The files go."""
    sizes = [os.path.getsize(os.path.join(at, name))
             for at, _, names in os.walk(folder()) for name in names]
    shutil.rmtree(FOLDER.pop())
    return {"locked_bytes": sum(LOCKED.values()), "nvme_files": len(sizes),
            "nvme_bytes": sum(sizes)}


def is_locked(storage):
    return storage.data_ptr() in LOCKED
