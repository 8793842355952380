// The driver's virtual memory (CUDA driver API, "Virtual Memory Management"), whose entry points
// are looked up when they are needed: a program linked to the driver does not start without one.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "runtime/growing_region.h"

namespace plimsoll::runtime {

namespace {

struct Driver {
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) access = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;
  bool complete = false;
};

const Driver& driver() {
  static const Driver found = [] {
    Driver d;
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return d;
    d.complete = true;
    const auto find = [&](auto& entry, const char* name) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
      d.complete = d.complete && entry != nullptr;
    };
    find(d.attribute, "cuDeviceGetAttribute");
    find(d.granularity, "cuMemGetAllocationGranularity");
    find(d.reserve, "cuMemAddressReserve");
    find(d.free, "cuMemAddressFree");
    find(d.create, "cuMemCreate");
    find(d.release, "cuMemRelease");
    find(d.map, "cuMemMap");
    find(d.unmap, "cuMemUnmap");
    find(d.access, "cuMemSetAccess");
    find(d.error_name, "cuGetErrorName");
    return d;
  }();
  return found;
}

void expect(CUresult status, const char* what) {
  check(status == CUDA_SUCCESS, ErrorKind::device, [&] {
    const char* name = nullptr;
    driver().error_name(status, &name);
    return std::string(what) + ": " + (name != nullptr ? name : std::to_string(status));
  });
}

class CudaVirtualMemory final : public VirtualMemory {
 public:
  CudaVirtualMemory(const CUmemAllocationProp& kind, std::size_t granularity, std::size_t capacity)
      : kind_(kind), granularity_(granularity), capacity_(capacity) {}

  std::int64_t granularity() const override { return static_cast<std::int64_t>(granularity_); }
  std::int64_t capacity() const override { return static_cast<std::int64_t>(capacity_); }

  std::byte* reserve(std::int64_t bytes) override {
    CUdeviceptr base = 0;
    expect(driver().reserve(&base, static_cast<std::size_t>(bytes), 0, 0, 0),
           "addresses of the GPU");
    return reinterpret_cast<std::byte*>(base);
  }

  bool map(std::byte* at, std::int64_t bytes) override {
    const auto size = static_cast<std::size_t>(bytes);
    const auto where = reinterpret_cast<CUdeviceptr>(at);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult status = driver().create(&handle, size, &kind_, 0);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return false;
    expect(status, "memory of the GPU");
    const CUresult mapped = driver().map(where, size, 0, handle, 0);
    driver().release(handle);  // the mapping keeps it
    expect(mapped, "memory of the GPU");
    parts_.push_back({where, size});
    CUmemAccessDesc access{};
    access.location = kind_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    expect(driver().access(where, size, &access, 1), "memory of the GPU");
    return true;
  }

  std::int64_t free_bytes() const override {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<std::int64_t>(free) : 0;
  }

  // Whether a granule can be had: some hosts of virtual machines say that they map memory, and then
  // do not.
  bool works() {
    CUdeviceptr base = 0;
    if (driver().reserve(&base, granularity_, 0, 0, 0) != CUDA_SUCCESS) return false;
    bool mapped = false;
    try {
      mapped = map(reinterpret_cast<std::byte*>(base), granularity());
    } catch (const Error&) {
    }
    for (const Part& part : parts_) driver().unmap(part.at, part.bytes);
    parts_.clear();
    driver().free(base, granularity_);
    return mapped;
  }

  void release(std::byte* base, std::int64_t reserved) noexcept override {
    cudaDeviceSynchronize();  // other ranks' kernels may be reading what is here
    for (const Part& part : parts_) driver().unmap(part.at, part.bytes);
    driver().free(reinterpret_cast<CUdeviceptr>(base), static_cast<std::size_t>(reserved));
  }

 private:
  struct Part {
    CUdeviceptr at;
    std::size_t bytes;
  };
  CUmemAllocationProp kind_;
  std::size_t granularity_, capacity_;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<VirtualMemory> cuda_virtual_memory(int device) {
  int offered = 0;
  std::size_t free = 0, total = 0, granularity = 0;
  if (!driver().complete ||
      driver().attribute(&offered, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                         device) != CUDA_SUCCESS ||
      offered == 0)
    return nullptr;
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (driver().granularity(&granularity, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
      cudaMemGetInfo(&free, &total) != cudaSuccess)
    return nullptr;
  auto memory = std::make_unique<CudaVirtualMemory>(kind, granularity, total);
  static const bool works = memory->works();  // of one driver
  return works ? std::move(memory) : nullptr;
}

}  // namespace plimsoll::runtime
