// A libcuda.so.1 without a GPU: enough for cuDNN to make plans for a device that is described to it
// (it loads this library by name). Initialization says that there is no device; loading a kernel
// that was compiled for one succeeds, and nothing runs.
extern "C" {

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

int cuInit(unsigned) {
  return kNoDevice;
}
int cuLibraryLoadData(void** library) {
  static int some;
  *library = &some;
  return 0;
}
int cuLibraryGetKernel(void** kernel) {
  return cuLibraryLoadData(kernel);
}

#define SUCCEEDS(name) \
  int name() {         \
    return 0;          \
  }
SUCCEEDS(cuCtxGetCurrent)
SUCCEEDS(cuCtxGetDevice)
SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuCtxPopCurrent)
SUCCEEDS(cuCtxPushCurrent)
SUCCEEDS(cuDeviceGet)
SUCCEEDS(cuDeviceGetAttribute)
SUCCEEDS(cuDeviceGetCount)
SUCCEEDS(cuDevicePrimaryCtxRelease)
SUCCEEDS(cuDevicePrimaryCtxReset)
SUCCEEDS(cuDevicePrimaryCtxRetain)
SUCCEEDS(cuDriverGetVersion)
SUCCEEDS(cuFuncGetAttribute)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuGetErrorName)
SUCCEEDS(cuGetErrorString)
SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuKernelSetAttribute)
SUCCEEDS(cuLaunchCooperativeKernel)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuLibraryLoadFromFile)
SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuLinkAddData)
SUCCEEDS(cuLinkAddData_v2)
SUCCEEDS(cuLinkAddFile_v2)
SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuLinkCreate)
SUCCEEDS(cuLinkCreate_v2)
SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuMemcpyDtoH_v2)
SUCCEEDS(cuModuleGetFunction)
SUCCEEDS(cuModuleGetGlobal_v2)
SUCCEEDS(cuModuleLoadData)
SUCCEEDS(cuModuleLoadDataEx)
SUCCEEDS(cuModuleLoadFatBinary)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuStreamGetCtx)
SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuTensorMapEncodeTiled)

}  // extern "C"
