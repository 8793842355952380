/* NCCL inside one process (nn.DataParallel), which sends nothing: ncclCommInitAll and what PyTorch's
 * torch/csrc/cuda/nccl.cpp calls. Loaded RTLD_GLOBAL before torch, like dry_cuda.c. What NCCL holds
 * of a device is outside PyTorch's allocator. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NOTHING(name)     \
  EXPORT int name(void) { \
    return 0;             \
  }
NOTHING(ncclGroupStart)
NOTHING(ncclGroupEnd)
NOTHING(ncclBroadcast)
NOTHING(ncclBcast)
NOTHING(ncclReduce)
NOTHING(ncclAllReduce)
NOTHING(ncclAllGather)
NOTHING(ncclReduceScatter)
NOTHING(ncclCommDestroy)

EXPORT int ncclGetVersion(int* version) {
  *version = 22800;
  return 0;
}
EXPORT const char* ncclGetErrorString(int error) {
  (void)error;
  return "an error of the dry NCCL";
}
EXPORT int ncclCommInitAll(void** communicators, int count, const int* devices) {
  (void)devices;
  for (int i = 0; i < count; ++i) communicators[i] = (void*)(uintptr_t)(0x1000 + i);
  return 0;
}
EXPORT int ncclCommCount(void* communicator, int* count) {
  (void)communicator;
  *count = 1;
  return 0;
}
