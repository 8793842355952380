/* A CUDA runtime that computes nothing.
 *
 * torch_measure.py compiles this file (any C compiler) and loads it, RTLD_GLOBAL, before it imports
 * torch on a machine that has no GPU. PyTorch then finds one GPU: its dispatcher takes the CUDA
 * branches, its autograd engine and its streams work, and its caching allocator receives addresses
 * from cudaMalloc below. What PyTorch would allocate and free, and when, therefore comes from
 * PyTorch's own CUDA code, workspaces that its kernels ask for included. What is absent:
 *   - no kernel and no cuBLAS call runs; device memory does not exist (addresses from kDeviceBase
 *     up are never mapped), reading it back gives zeros, or what the host had just written there,
 *     or what the caller said that the next reads find (plimsoll_dry_answer);
 *   - nothing outside PyTorch's allocator is there: no context, no cuBLAS or cuDNN internals;
 *   - an event is complete as soon as it is recorded, so a block that record_stream() holds back is
 *     free at the next allocation (on a GPU that depends on how far the host runs ahead);
 *   - occupancy is a constant, so scratch of CUB and of reductions may differ by some KiB.
 * A measurement made with it is labelled "dry-run" and is never evidence about a GPU.
 *
 * Layouts and enumerators are those of CUDA 12.8 and 13.0 (driver_types.h); offsets are given
 * beside each use, so that no CUDA header is needed. Uncovered entry points fall through to the
 * real libraries, which answer "no driver".
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { kOk = 0, kInvalidValue = 1, kOutOfMemory = 2 };
static const uint64_t kDeviceBase = 0x300000000000ull;
static const uint64_t kDeviceEnd = 0x3f0000000000ull;
enum { kDevices = 15 }; /* at most; each has so many addresses: */
static const uint64_t kAddresses = 0x010000000000ull;
static const uint64_t kPage = 2ull << 20; /* physical granularity of cudaMalloc */

static struct {
  uint64_t capacity, used[kDevices], next[kDevices];
  uint64_t address[1 << 16], bytes[1 << 16];
  uint64_t live, handles;
  int last_error;
  char name[256];
  int major, minor, multiprocessors;
  int devices;
} gpu = {.capacity = 0, .major = 9, .minor = 0, .multiprocessors = 132, .devices = 1};
static _Thread_local int current; /* the thread's device */
static volatile int lock_word;

static void lock(void) {
  while (__sync_lock_test_and_set(&lock_word, 1)) {
  }
}
static void unlock(void) {
  __sync_lock_release(&lock_word);
}

/* Called by torch_measure.py right after loading. */
EXPORT void plimsoll_dry_gpu(const char* name, uint64_t capacity, int major, int minor,
                             int multiprocessors) {
  strncpy(gpu.name, name, sizeof gpu.name - 1);
  gpu.capacity = capacity;
  for (unsigned i = 0; i < kDevices; ++i) gpu.next[i] = kDeviceBase + i * kAddresses;
  gpu.major = major;
  gpu.minor = minor;
  gpu.multiprocessors = multiprocessors;
}

/* Before torch is imported: so many cards of that kind, of one process (nn.DataParallel). */
EXPORT void plimsoll_dry_devices(int devices) {
  gpu.devices = devices;
}

/* Another compute capability, before anything asks for it. */
EXPORT void plimsoll_dry_capability(int major, int minor, int multiprocessors) {
  gpu.major = major;
  gpu.minor = minor;
  gpu.multiprocessors = multiprocessors;
}

static int is_device(const void* p) {
  return (uint64_t)p >= kDeviceBase && (uint64_t)p < kDeviceEnd;
}

static int device_of(const void* p) {
  return (int)(((uint64_t)p - kDeviceBase) / kAddresses);
}

/* ---- memory ---- */
EXPORT int cudaMalloc(void** out, size_t bytes) {
  const uint64_t size = (bytes + kPage - 1) / kPage * kPage;
  lock();
  if (gpu.used[current] + size > gpu.capacity || gpu.live == sizeof gpu.bytes / sizeof *gpu.bytes) {
    gpu.last_error = kOutOfMemory;
    unlock();
    *out = NULL;
    return kOutOfMemory;
  }
  gpu.address[gpu.live] = gpu.next[current];
  gpu.bytes[gpu.live++] = size;
  gpu.used[current] += size;
  *out = (void*)gpu.next[current];
  gpu.next[current] += size;
  unlock();
  return kOk;
}

EXPORT int cudaFree(void* p) {
  lock();
  for (uint64_t i = 0; i < gpu.live; ++i) {
    if (gpu.address[i] != (uint64_t)p) continue;
    gpu.used[device_of(p)] -= gpu.bytes[i];
    --gpu.live;
    gpu.address[i] = gpu.address[gpu.live];
    gpu.bytes[i] = gpu.bytes[gpu.live];
    break;
  }
  unlock();
  return kOk;
}

/* Virtual memory, as expandable segments use it: physical memory counts from cuMemCreate to
 * cuMemRelease; a handle is an index. */
static struct {
  uint64_t bytes[1 << 16];
  int device[1 << 16];
  unsigned next;
} physical;

EXPORT int cuMemGetAllocationGranularity(size_t* granularity, const void* properties, int option) {
  (void)properties, (void)option;
  *granularity = kPage;
  return kOk;
}
EXPORT int cuMemAddressReserve(uint64_t* out, size_t bytes, size_t alignment, uint64_t where,
                               unsigned long long flags) {
  (void)alignment, (void)where, (void)flags;
  lock();
  *out = gpu.next[current];
  gpu.next[current] += (bytes + kPage - 1) / kPage * kPage;
  unlock();
  return kOk;
}
EXPORT int cuMemCreate(uint64_t* handle, size_t bytes, const void* properties,
                       unsigned long long flags) {
  (void)properties, (void)flags;
  lock();
  const unsigned slots = sizeof physical.bytes / sizeof *physical.bytes;
  unsigned tried = 0;
  while (tried < slots && (physical.next == 0 || physical.bytes[physical.next]))
    physical.next = (physical.next + 1) % slots, ++tried;
  const int fits = tried < slots && gpu.used[current] + bytes <= gpu.capacity;
  if (fits) {
    physical.bytes[physical.next] = bytes;
    physical.device[physical.next] = current;
    gpu.used[current] += bytes;
    *handle = physical.next;
  }
  unlock();
  return fits ? kOk : kOutOfMemory;
}
EXPORT int cuMemRelease(uint64_t handle) {
  lock();
  gpu.used[physical.device[handle]] -= physical.bytes[handle];
  physical.bytes[handle] = 0;
  unlock();
  return kOk;
}

EXPORT int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = gpu.capacity - gpu.used[current];
  *total = gpu.capacity;
  return kOk;
}

/* Managed memory (bitsandbytes' paged optimizers): addresses of the host that nobody touches, since
 * no kernel runs. Counted apart: it is neither the allocator's nor of the device's capacity. */
static uint64_t managed;
EXPORT int cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  (void)flags;
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  void* p =
      mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return kOutOfMemory;
  lock();
  managed += bytes;
  unlock();
  *out = p;
  return kOk;
}
EXPORT uint64_t plimsoll_dry_managed(void) {
  return managed;
}

/* Pinned memory, which cudaPointerGetAttributes knows as such. */
enum { kPinned = 4096 };
static struct {
  uintptr_t begin;
  size_t bytes;
} pinned[kPinned];
static int is_pinned(const void* p) {
  for (int i = 0; i < kPinned; ++i)
    if ((uintptr_t)p >= pinned[i].begin && (uintptr_t)p < pinned[i].begin + pinned[i].bytes)
      return 1;
  return 0;
}

EXPORT int cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  (void)flags;
  if (posix_memalign(out, 4096, bytes ? bytes : 1)) return kOutOfMemory;
  lock();
  int slot = 0;
  while (slot < kPinned && pinned[slot].begin) ++slot;
  if (slot < kPinned) {
    pinned[slot].begin = (uintptr_t)*out;
    pinned[slot].bytes = bytes ? bytes : 1;
  }
  unlock();
  if (slot < kPinned) return kOk;
  free(*out);
  return kOutOfMemory;
}
EXPORT int cudaFreeHost(void* p) {
  lock();
  for (int i = 0; i < kPinned; ++i)
    if (pinned[i].begin == (uintptr_t)p) pinned[i].begin = pinned[i].bytes = 0;
  unlock();
  free(p);
  return kOk;
}

/* The last few copies to the device, by exact address and size, so that what the host just wrote
 * can be read back (DDP sends its bucket indices through the device). */
static struct {
  uint64_t address, bytes;
  void* data;
} written[16];
static unsigned next_written;

static void remember(const void* to, const void* from, size_t bytes) {
  if (bytes < 4 || bytes > (1u << 20)) return;
  unsigned slot = next_written++ % 16;
  for (unsigned i = 0; i < 16; ++i)
    if (written[i].address == (uint64_t)to) slot = i;
  free(written[slot].data);
  written[slot].address = (uint64_t)to;
  written[slot].bytes = bytes;
  written[slot].data = malloc(bytes);
  memcpy(written[slot].data, from, bytes);
}

/* What the next reads of one number find, in their order (routing.py); none: as always. */
static int64_t answers[1 << 12];
static unsigned next_answer, answers_end;
EXPORT void plimsoll_dry_answer(const int64_t* values, unsigned count) {
  lock();
  next_answer = 0;
  answers_end = count <= 1u << 12 ? count : 0;
  memcpy(answers, values, answers_end * sizeof *answers);
  unlock();
}
EXPORT unsigned plimsoll_dry_unasked(void) {
  return answers_end - next_answer;
}

static void recall(void* to, const void* from, size_t bytes) {
  if (bytes > (64u << 20)) return; /* nobody reads so much */
  if (next_answer < answers_end && (bytes == 4 || bytes == 8)) {
    const int64_t answer = answers[next_answer++]; /* little-endian */
    memcpy(to, &answer, bytes);
    return;
  }
  memset(to, 0, bytes);
  for (unsigned i = 0; i < 16; ++i)
    if (written[i].address == (uint64_t)from && written[i].bytes == bytes)
      memcpy(to, written[i].data, bytes);
}

static int copy(void* to, const void* from, size_t bytes) {
  lock();
  if (is_device(to)) {
    if (!is_device(from)) remember(to, from, bytes);
  } else if (is_device(from)) {
    recall(to, from, bytes);
  } else {
    memmove(to, from, bytes);
  }
  unlock();
  return kOk;
}
EXPORT int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  (void)kind;
  return copy(to, from, bytes);
}
EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  (void)kind, (void)stream;
  return copy(to, from, bytes);
}
EXPORT int cudaMemset(void* p, int value, size_t bytes) {
  if (!is_device(p)) memset(p, value, bytes);
  return kOk;
}
EXPORT int cudaMemsetAsync(void* p, int value, size_t bytes, void* stream) {
  (void)stream;
  return cudaMemset(p, value, bytes);
}

/* cudaPointerAttributes: type at 0 (0 unregistered, 1 host, 2 device), device at 4, devicePointer
 * at 8, hostPointer at 16, 88 bytes. */
EXPORT int cudaPointerGetAttributes(void* out, const void* p) {
  memset(out, 0, 88);
  if (is_device(p)) {
    *(int*)out = 2;
    *(int*)((char*)out + 4) = device_of(p);
    memcpy((char*)out + 8, &p, sizeof p);
  } else {
    const int host = is_pinned(p);
    *(int*)out = host;
    *(int*)((char*)out + 4) = host ? 0 : -1;
    if (host) memcpy((char*)out + 8, &p, sizeof p);
    memcpy((char*)out + 16, &p, sizeof p);
  }
  return kOk;
}

/* ---- device ---- */
EXPORT int cudaGetDeviceCount(int* n) {
  *n = gpu.devices;
  return kOk;
}
EXPORT int cudaGetDevice(int* device) {
  *device = current;
  return kOk;
}
EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= gpu.devices) return 101;
  current = device;
  return kOk;
}
EXPORT int cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                               size_t bytes, void* stream) {
  (void)to, (void)to_device, (void)from, (void)from_device, (void)bytes, (void)stream;
  return kOk;
}
EXPORT int cudaDriverGetVersion(int* v) {
  *v = 13000;
  return kOk;
}
EXPORT int cudaRuntimeGetVersion(int* v) {
  return cudaDriverGetVersion(v);
}
EXPORT int cudaDeviceCanAccessPeer(int* can, int a, int b) {
  (void)a, (void)b;
  *can = 0;
  return kOk;
}
EXPORT int cudaDeviceGetPCIBusId(char* out, int len, int device) {
  (void)device;
  snprintf(out, (size_t)len, "0000:01:00.0");
  return kOk;
}
EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kOk;
}

/* cudaDeviceProp: where its fields stand. CUDA 13 left out those of CUDA 12 that are attributes. */
struct layout {
  unsigned bytes, multiProcessorCount, concurrentKernels, pciBusID, unifiedAddressing,
      memoryBusWidth, l2CacheSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported,
      sharedMemPerMultiprocessor, regsPerMultiprocessor, cooperativeLaunch, sharedMemPerBlockOptin,
      maxBlocksPerMultiProcessor, reservedSharedMemPerBlock, clusterLaunch;
};
static const struct layout cuda13 = {1008, 384, 560, 568, 588, 592, 596, 604,
                                     608,  624, 632, 668, 672, 688, 696, 748};
static const struct layout cuda12 = {1032, 388, 576, 584, 604, 612, 616, 624,
                                     628,  640, 648, 688, 696, 712, 720, 772};

/* Figures of a Hopper SM where PyTorch asks for them. */
static int properties(void* out, const struct layout* at) {
  char* p = memset(out, 0, at->bytes);
  memcpy(p, gpu.name, sizeof gpu.name);
  *(size_t*)(p + 288) = gpu.capacity; /* totalGlobalMem */
  *(size_t*)(p + 296) = 49152; /* sharedMemPerBlock */
  *(int*)(p + 304) = 65536; /* regsPerBlock */
  *(int*)(p + 308) = 32; /* warpSize */
  *(size_t*)(p + 312) = 0x7fffffff; /* memPitch */
  *(int*)(p + 320) = 1024; /* maxThreadsPerBlock */
  const int threads[3] = {1024, 1024, 64}, grid[3] = {0x7fffffff, 65535, 65535};
  memcpy(p + 324, threads, sizeof threads); /* maxThreadsDim */
  memcpy(p + 336, grid, sizeof grid); /* maxGridSize */
  *(size_t*)(p + 352) = 65536; /* totalConstMem */
  *(int*)(p + 360) = gpu.major;
  *(int*)(p + 364) = gpu.minor;
  *(size_t*)(p + 368) = 512; /* textureAlignment */
  *(int*)(p + at->multiProcessorCount) = gpu.multiprocessors;
  *(int*)(p + at->concurrentKernels) = 1;
  *(int*)(p + at->pciBusID) = 1;
  *(int*)(p + at->unifiedAddressing) = 1;
  *(int*)(p + at->memoryBusWidth) = 5120;
  *(int*)(p + at->l2CacheSize) = 50 << 20;
  *(int*)(p + at->maxThreadsPerMultiProcessor) = 2048;
  *(int*)(p + at->streamPrioritiesSupported) = 1;
  *(size_t*)(p + at->sharedMemPerMultiprocessor) = 233472;
  *(int*)(p + at->regsPerMultiprocessor) = 65536;
  *(int*)(p + at->cooperativeLaunch) = 1;
  *(size_t*)(p + at->sharedMemPerBlockOptin) = 232448;
  *(int*)(p + at->maxBlocksPerMultiProcessor) = 32;
  *(size_t*)(p + at->reservedSharedMemPerBlock) = 1024;
  *(int*)(p + at->clusterLaunch) = 1;
  return kOk;
}
EXPORT int cudaGetDeviceProperties(void* out, int device) {
  (void)device;
  return properties(out, &cuda13);
}
EXPORT int cudaGetDeviceProperties_v2(void* out, int device) { /* its name in CUDA 12 */
  (void)device;
  return properties(out, &cuda12);
}

static int attribute(int which) {
  switch (which) {
    case 1:
      return 1024; /* MaxThreadsPerBlock */
    case 2:
      return 1024; /* MaxBlockDimX */
    case 3:
      return 1024; /* MaxBlockDimY */
    case 4:
      return 64; /* MaxBlockDimZ */
    case 5:
      return 0x7fffffff; /* MaxGridDimX */
    case 6:
      return 65535; /* MaxGridDimY */
    case 7:
      return 65535; /* MaxGridDimZ */
    case 8:
      return 49152; /* MaxSharedMemoryPerBlock */
    case 10:
      return 32; /* WarpSize */
    case 12:
      return 65536; /* MaxRegistersPerBlock */
    case 13:
      return 1980000; /* ClockRate, kHz */
    case 16:
      return gpu.multiprocessors; /* MultiProcessorCount */
    case 38:
      return 50 << 20; /* L2CacheSize */
    case 39:
      return 2048; /* MaxThreadsPerMultiProcessor */
    case 41:
      return 1; /* UnifiedAddressing */
    case 75:
      return gpu.major;
    case 76:
      return gpu.minor;
    case 81:
      return 233472; /* MaxSharedMemoryPerMultiprocessor */
    case 82:
      return 65536; /* MaxRegistersPerMultiprocessor */
    case 95:
      return 1; /* CooperativeLaunch */
    case 97:
      return 232448; /* MaxSharedMemoryPerBlockOptin */
    case 106:
      return 32; /* MaxBlocksPerMultiprocessor */
    case 111:
      return 1024; /* ReservedSharedMemoryPerBlock */
    case 120:
      return 1; /* ClusterLaunch */
    default:
      return 0;
  }
}
EXPORT int cudaDeviceGetAttribute(int* out, int which, int device) {
  (void)device;
  *out = attribute(which);
  return kOk;
}

/* ---- errors ---- */
EXPORT int cudaGetLastError(void) {
  const int e = gpu.last_error;
  gpu.last_error = kOk;
  return e;
}
EXPORT int cudaPeekAtLastError(void) {
  return gpu.last_error;
}
EXPORT const char* cudaGetErrorString(int e) {
  return e == kOutOfMemory ? "out of memory"
         : e == kOk        ? "no error"
                           : "error of the dry CUDA runtime";
}
EXPORT const char* cudaGetErrorName(int e) {
  return e == kOutOfMemory ? "cudaErrorMemoryAllocation"
         : e == kOk        ? "cudaSuccess"
                           : "cudaErrorUnknown";
}

/* ---- streams, events, kernels: nothing runs, everything is already complete ---- */
static void* handle(void) {
  return (void*)(uintptr_t)(0x1000 + __sync_add_and_fetch(&gpu.handles, 1));
}

EXPORT int cudaStreamCreate(void** s) {
  *s = handle();
  return kOk;
}
EXPORT int cudaStreamCreateWithPriority(void** s, unsigned flags, int priority) {
  (void)flags, (void)priority;
  return cudaStreamCreate(s);
}
EXPORT int cudaStreamGetPriority(void* s, int* priority) {
  (void)s;
  *priority = 0;
  return kOk;
}
EXPORT int cudaStreamIsCapturing(void* s, int* status) {
  (void)s;
  *status = 0;
  return kOk;
}
EXPORT int cudaStreamGetCaptureInfo(void* s, int* status, uint64_t* id) {
  (void)s;
  *status = 0;
  if (id) *id = 0;
  return kOk;
}
EXPORT int cudaStreamGetCaptureInfo_v2(void* s, int* status, uint64_t* id, void** graph,
                                       const void** dependencies, size_t* count) {
  if (graph) *graph = NULL;
  if (dependencies) *dependencies = NULL;
  if (count) *count = 0;
  return cudaStreamGetCaptureInfo(s, status, id);
}
EXPORT int cudaThreadExchangeStreamCaptureMode(int* mode) {
  (void)mode;
  return kOk;
}
EXPORT int cudaEventCreate(void** e) {
  return cudaStreamCreate(e);
}
EXPORT int cudaEventCreateWithFlags(void** e, unsigned flags) {
  (void)flags;
  return cudaStreamCreate(e);
}
EXPORT int cudaEventElapsedTime(float* ms, void* a, void* b) {
  (void)a, (void)b;
  *ms = 0;
  return kOk;
}

#define COVERED(name)     \
  EXPORT int name(void) { \
    return kOk;           \
  }
COVERED(cudaDeviceSynchronize)
COVERED(cudaDeviceEnablePeerAccess)
COVERED(cudaEventDestroy)
COVERED(cudaEventQuery)
COVERED(cudaEventRecord)
COVERED(cudaEventRecordWithFlags)
COVERED(cudaEventSynchronize)
COVERED(cudaFuncSetAttribute)
COVERED(cudaHostRegister)
COVERED(cudaHostUnregister)
COVERED(cudaLaunchKernel)
COVERED(cudaLaunchKernelExC)
COVERED(cudaLaunchCooperativeKernel)
COVERED(cudaMemPrefetchAsync)
COVERED(cudaMemcpyToSymbol)
COVERED(cudaProfilerStart)
COVERED(cudaProfilerStop)
COVERED(cudaStreamDestroy)
COVERED(cudaStreamQuery)
COVERED(cudaStreamSynchronize)
COVERED(cudaStreamWaitEvent)
COVERED(__cudaInitModule)
COVERED(__cudaLaunchKernel)
COVERED(__cudaPushCallConfiguration)
COVERED(__cudaRegisterFatBinaryEnd)
COVERED(__cudaRegisterFunction)
COVERED(__cudaRegisterVar)
COVERED(__cudaUnregisterFatBinary)

EXPORT void** __cudaRegisterFatBinary(void* binary) {
  static void* registered;
  registered = binary;
  return &registered;
}
EXPORT int __cudaGetKernel(void** kernel, const void* entry) {
  *kernel = (void*)entry;
  return kOk;
}
EXPORT int __cudaPopCallConfiguration(unsigned* grid, unsigned* block, size_t* shared,
                                      void** stream) {
  for (int i = 0; i < 3; ++i) grid[i] = block[i] = 1;
  *shared = 0;
  *stream = NULL;
  return kOk;
}
EXPORT int cudaGetSymbolAddress(void** out, const void* symbol) {
  (void)symbol;
  *out = (void*)kDeviceBase;
  return kOk;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n) {
  *n = 8;
  return kOk;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n) {
  *n = 8;
  return kOk;
}
/* cudaFuncAttributes, 144 bytes. */
EXPORT int cudaFuncGetAttributes(void* out, const void* entry) {
  (void)entry;
  char* p = memset(out, 0, 144);
  *(int*)(p + 24) = 1024; /* maxThreadsPerBlock */
  *(int*)(p + 28) = 32; /* numRegs */
  *(int*)(p + 32) = gpu.major * 10 + gpu.minor; /* ptxVersion */
  *(int*)(p + 36) = gpu.major * 10 + gpu.minor; /* binaryVersion */
  *(int*)(p + 44) = 232448; /* maxDynamicSharedSizeBytes */
  return kOk;
}

/* ---- driver entry points that PyTorch looks up (its nvrtc helper links libcuda.so.1, which is
 * this file's soname) ---- */
EXPORT int cuCtxGetCurrent(void** context) {
  *context = (void*)1;
  return kOk;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kOk;
}
EXPORT int cuDeviceGetAttribute(int* out, int which, int device) {
  return cudaDeviceGetAttribute(out, which, device);
}
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return kOk;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context) {
  return cuCtxGetCurrent(context);
}
EXPORT int cuGetErrorString(int e, const char** text) {
  *text = cudaGetErrorString(e);
  return kOk;
}
/* Kernels of other libraries are not loaded, unless plimsoll_dry_load() says so: cuDNN compiles and
 * loads those of a plan (dry_cudnn.c). */
static int loads;
EXPORT void plimsoll_dry_load(void) {
  loads = 1;
}
static int refused(void) {
  return loads ? kOk : 801; /* CUDA_ERROR_NOT_SUPPORTED */
}
#define REFUSED(name)     \
  EXPORT int name(void) { \
    return refused();     \
  }
COVERED(cuCtxSetCurrent)
COVERED(cuMemAddressFree)
COVERED(cuMemMap)
COVERED(cuMemSetAccess)
COVERED(cuMemUnmap)
COVERED(cuTensorMapEncodeTiled)
COVERED(cuLaunchKernel)
COVERED(cuLaunchCooperativeKernel)
REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuFuncSetCacheConfig)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleLoad)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuPointerGetAttribute)
/* What cuDNN looks up besides. There is no device to its own copy of the CUDA runtime. */
EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return 100; /* CUDA_ERROR_NO_DEVICE */
}
EXPORT int cuLibraryLoadData(void** library) {
  *library = (void*)kDeviceBase;
  return refused();
}
EXPORT int cuLibraryGetKernel(void** kernel) {
  return cuLibraryLoadData(kernel);
}
REFUSED(cuCtxGetDevice)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuDeviceGetCount)
REFUSED(cuDevicePrimaryCtxRelease)
REFUSED(cuDevicePrimaryCtxReset)
REFUSED(cuDriverGetVersion)
REFUSED(cuGetErrorName)
REFUSED(cuKernelGetAttribute)
REFUSED(cuKernelSetAttribute)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLibraryUnload)
REFUSED(cuLinkAddData)
REFUSED(cuLinkAddFile_v2)
REFUSED(cuLinkCreate)
REFUSED(cuLinkDestroy)
REFUSED(cuMemcpyDtoH_v2)
REFUSED(cuModuleGetGlobal_v2)
REFUSED(cuModuleLoadFatBinary)
REFUSED(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuStreamGetCtx)
REFUSED(cuStreamSynchronize)

EXPORT int cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned version,
                                            unsigned long long flags, int* status) {
  (void)version, (void)flags;
  static const struct {
    const char* name;
    void* entry;
  } known[] = {{"cuCtxGetCurrent", (void*)cuCtxGetCurrent},
               {"cuCtxSetCurrent", (void*)cuCtxSetCurrent},
               {"cuDeviceGet", (void*)cuDeviceGet},
               {"cuDeviceGetAttribute", (void*)cuDeviceGetAttribute},
               {"cuGetErrorString", (void*)cuGetErrorString},
               {"cuMemAddressFree", (void*)cuMemAddressFree},
               {"cuMemAddressReserve", (void*)cuMemAddressReserve},
               {"cuMemCreate", (void*)cuMemCreate},
               {"cuMemGetAllocationGranularity", (void*)cuMemGetAllocationGranularity},
               {"cuMemMap", (void*)cuMemMap},
               {"cuMemRelease", (void*)cuMemRelease},
               {"cuMemSetAccess", (void*)cuMemSetAccess},
               {"cuMemUnmap", (void*)cuMemUnmap},
               {"cuTensorMapEncodeTiled", (void*)cuTensorMapEncodeTiled}};
  *out = (void*)refused;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strcmp(symbol, known[i].name) == 0) *out = known[i].entry;
  if (status) *status = 0;
  return kOk;
}
EXPORT int cudaGetDriverEntryPoint(const char* symbol, void** out, unsigned long long flags,
                                   int* status) { /* CUDA 12 */
  return cudaGetDriverEntryPointByVersion(symbol, out, 12000, flags, status);
}

/* ---- cuBLAS: handles are numbers, products are skipped ---- */
EXPORT int cublasCreate_v2(void** h) {
  *h = handle();
  return kOk;
}
EXPORT int cublasGetMathMode(void* h, int* mode) {
  (void)h;
  *mode = 0;
  return kOk;
}
EXPORT int cublasGetPointerMode_v2(void* h, int* mode) {
  return cublasGetMathMode(h, mode);
}
EXPORT size_t cublasLtGetVersion(void) {
  return 130100;
}
EXPORT int cublasLtMatmulDescCreate(void** d) {
  return cublasCreate_v2(d);
}
EXPORT int cublasLtMatmulPreferenceCreate(void** d) {
  return cublasCreate_v2(d);
}
EXPORT int cublasLtMatrixLayoutCreate(void** d) {
  return cublasCreate_v2(d);
}
/* cublasLtMatmulHeuristicResult_t: 64 bytes of algorithm, workspaceSize, state, waves, reserved. */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void* h, void* op, void* a, void* b, void* c, void* d,
                                          void* preference, int wanted, void* results, int* found) {
  (void)h, (void)op, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = wanted > 0;
  if (wanted > 0) memset(results, 0, 80);
  return kOk;
}
COVERED(cublasDestroy_v2)
COVERED(cublasSetMathMode)
COVERED(cublasSetPointerMode_v2)
COVERED(cublasSetStream_v2)
COVERED(cublasSetWorkspace_v2)
COVERED(cublasLtMatmul)
COVERED(cublasLtMatmulDescDestroy)
COVERED(cublasLtMatmulDescSetAttribute)
COVERED(cublasLtMatmulPreferenceDestroy)
COVERED(cublasLtMatmulPreferenceSetAttribute)
COVERED(cublasLtMatrixLayoutDestroy)
COVERED(cublasLtMatrixLayoutSetAttribute)
COVERED(cublasGemmEx)
COVERED(cublasGemmStridedBatchedEx)
COVERED(cublasSgemmEx)
COVERED(cublasSgemm_v2)
COVERED(cublasSgemmStridedBatched)
COVERED(cublasSgemv_v2)
COVERED(cublasDgemm_v2)
COVERED(cublasDgemmStridedBatched)
COVERED(cublasDotEx)
COVERED(cublasSdot_v2)
