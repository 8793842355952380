/* cuDNN's graphs on the dry CUDA runtime: its own plans, of which none runs.
 *
 * torch_measure.py loads this beside dry_cuda.c where a workload asks for cuDNN's attention. PyTorch
 * (ATen/native/cudnn/MHA.cpp) then builds its graphs with the real cuDNN, whose heuristics and
 * engines are those of the wheel, for a GPU that is described to it: cuDNN makes plans for a device
 * that is not there where it is given the device's properties instead of a handle
 * (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). So the workspace that PyTorch asks its allocator for is what
 * that plan needs, to the byte; on an H100 it was the same (reports/evidence). Executing a plan does
 * nothing. cudnnCreate makes a handle that only this file looks at.
 *
 * Enumerators are those of cuDNN 9 (cudnn_graph_v9.h), so that no header of it is needed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
  kSuccess = 0,
  kNotInitialized = 1001,
  kHandle = 0, /* CUDNN_TYPE_ */
  kDescriptor = 15,
  kChar = 24,
  kHeuristicGraph = 201, /* CUDNN_ATTR_ */
  kHeuristicDevice = 204,
  kPlanHandle = 400,
  kPlanDevice = 407,
  kGraphHandle = 800,
  kEngineGraph = 1300,
  kEngineDevice = 1307,
  kDeviceText = 2702,
  kDeviceProperties = 38 /* CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR */
};

static void* device; /* the description's descriptor */
static char text[1024];

static void* real(const char* name) {
  static void* library;
  if (!library) library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
  void* entry = library ? dlsym(library, name) : NULL;
  if (entry) return entry;
  fprintf(stderr, "dry_cudnn: libcudnn.so.9 has no %s\n", name);
  abort();
}

static int set(void* descriptor, int name, int type, int64_t count, const void* values) {
  static int (*entry)(void*, int, int, int64_t, const void*);
  if (!entry) entry = real("cudnnBackendSetAttribute");
  return entry(descriptor, name, type, count, values);
}

/* Called by torch_measure.py: the GPU, as dry_cuda.c has it. CUDA C++ Programming Guide, technical
 * specifications per compute capability. */
EXPORT void plimsoll_dry_cudnn(const char* name, uint64_t capacity, int major, int minor,
                               int multiprocessors) {
  const int capability = 10 * major + minor;
  const int small = capability == 86 || capability == 89 || major == 12; /* of a desktop */
  snprintf(text, sizeof text,
           "{\"deviceName\": \"%s\", \"cudaDeviceId\": 0, \"deviceVer\": %d, \"driverVer\": 13000, "
           "\"multiProcessorCount\": %d, \"totalGlobalMem\": %llu, \"l2CacheSize\": 52428800, "
           "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
           "\"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
           "\"maxSharedMemoryPerBlockOptin\": %d, \"reservedSharedMemoryPerBlock\": 1024, "
           "\"regsPerBlock\": 65536, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": %d, "
           "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %d, \"smClockRateKHz\": 1980000, "
           "\"memClockRateKHz\": 2619000, \"pciDeviceId\": 0, \"isTccDriver\": 0, "
           "\"supportCoopLaunch\": 1}",
           name, 10 * capability, multiprocessors, (unsigned long long)capacity,
           small ? 101376 : major == 8 ? 166912 : 232448,
           capability == 86 ? 16 : small ? 24 : 32, small ? 1536 : 2048);
}

static void* described(void) {
  if (device) return device;
  int (*create)(int, void**) = real("cudnnBackendCreateDescriptor");
  int (*finalize)(void*) = real("cudnnBackendFinalize");
  void* made = NULL;
  if (create(kDeviceProperties, &made) || set(made, kDeviceText, kChar, (int64_t)strlen(text), text) ||
      finalize(made))
    return NULL;
  return device = made;
}

EXPORT int cudnnCreate(void** handle) {
  *handle = described();
  return *handle ? kSuccess : kNotInitialized;
}
EXPORT int cudnnDestroy(void* handle) {
  (void)handle;
  return kSuccess;
}
EXPORT int cudnnSetStream(void* handle, void* stream) {
  (void)handle, (void)stream;
  return kSuccess;
}
EXPORT int cudnnGetStream(void* handle, void** stream) {
  (void)handle;
  *stream = NULL;
  return kSuccess;
}

/* A handle is left out, and the device stands where cuDNN would have asked it. */
EXPORT int cudnnBackendSetAttribute(void* descriptor, int name, int type, int64_t count,
                                    const void* values) {
  if (name == kGraphHandle && type == kHandle) return kSuccess;
  if (name == kPlanHandle && type == kHandle)
    return set(descriptor, kPlanDevice, kDescriptor, 1, &device);
  const int status = set(descriptor, name, type, count, values);
  if (status) return status;
  if (name == kHeuristicGraph) return set(descriptor, kHeuristicDevice, kDescriptor, 1, &device);
  if (name == kEngineGraph) return set(descriptor, kEngineDevice, kDescriptor, 1, &device);
  return status;
}

EXPORT int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  (void)handle, (void)plan, (void)pack;
  return kSuccess;
}
