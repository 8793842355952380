#include "runtime/device_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/gemms.h"
#include "runtime/growing_region.h"
#include "runtime/pinned_host.h"
#include "runtime/stream.h"

namespace plimsoll::runtime {

namespace {

namespace cuda = kernels::cuda;

void expect(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

std::size_t size(Bytes bytes) {
  return static_cast<std::size_t>(bytes.value());
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// All memory at once, where the driver cannot map it piece by piece: what is free, but for what the
// libraries load later, and one share of it where ranks share the GPU.
class WholeRegion final : public Region {
 public:
  WholeRegion(Bytes most, int ranks) {
    constexpr std::size_t kLeft = std::size_t{1} << 30;
    std::size_t free = 0, total = 0;
    expect(cudaMemGetInfo(&free, &total), "the GPU's memory");
    const std::size_t share =
        (free - std::min(free, kLeft)) / static_cast<std::size_t>(std::max(1, ranks));
    cudaError_t status = cudaErrorMemoryAllocation;
    // What is free may lie in pieces: sixteenths less, down to half.
    for (std::size_t parts = 16; parts >= 8 && status == cudaErrorMemoryAllocation; --parts) {
      bytes_ = std::min(size(most), share / 16 * parts);
      status = cudaMalloc(&base_, std::max<std::size_t>(1, bytes_));
      if (status == cudaErrorMemoryAllocation) cudaGetLastError();  // not the next call's error
    }
    check(status != cudaErrorMemoryAllocation, ErrorKind::out_of_memory, [&] {
      return "the GPU maps no memory piece by piece, and has no " + std::to_string(bytes_) +
             " B at once (" + std::to_string(free) + " are free): give a limit with --gpu-memory";
    });
    expect(status, "memory of the GPU");
  }
  ~WholeRegion() override { cudaFree(base_); }
  WholeRegion(const WholeRegion&) = delete;
  WholeRegion& operator=(const WholeRegion&) = delete;
  std::byte* base() const override { return static_cast<std::byte*>(base_); }
  void grow(Bytes bytes) override {
    check(size(bytes) <= bytes_, ErrorKind::out_of_memory, "the GPU has no more memory");
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(CUstream_st* stream) : stream_(stream) {}
  void mark() override {
    marks_.emplace_back(Event::Kind::timed);
    marks_.back().record(stream_);
  }
  std::vector<double> laps() override {
    std::vector<double> seconds;
    if (marks_.empty()) return seconds;
    marks_.back().wait();
    for (std::size_t i = 1; i < marks_.size(); ++i) {
      float milliseconds = 0;
      expect(cudaEventElapsedTime(&milliseconds, marks_[i - 1].get(), marks_[i].get()), "an event");
      seconds.push_back(milliseconds * 1e-3);
    }
    return seconds;
  }

 private:
  CUstream_st* stream_;
  std::vector<Event> marks_;
};

// Pinned memory through which small operands (token ids) go, so that the copy needs no waiting for
// the stream.
class Staging {
 public:
  static constexpr std::size_t kLargest = 1 << 20;

  void copy_in(void* to, const void* host, std::size_t bytes, CUstream_st* stream) {
    Slot& slot = slots_[next_++ % slots_.size()];
    if (slot.memory == nullptr)
      expect(cudaMallocHost(&slot.memory, kLargest), "pinned memory");
    else
      slot.sent.wait();
    std::memcpy(slot.memory, host, bytes);
    expect(cudaMemcpyAsync(to, slot.memory, bytes, cudaMemcpyDefault, stream), "a copy");
    slot.sent.record(stream);
  }
  Staging() = default;
  ~Staging() {
    for (Slot& slot : slots_) cudaFreeHost(slot.memory);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

 private:
  struct Slot {
    void* memory = nullptr;
    Event sent;
  };
  std::array<Slot, 8> slots_;
  std::size_t next_ = 0;
};

// Beside the rank's stream.
class CudaCopying final : public Copying {
 public:
  CudaCopying(void* to, const void* from, std::size_t bytes, CUstream_st* side, CUstream_st* ops)
      : ops_(ops) {
    Event begin;
    begin.record(ops);
    wait_for(side, begin);
    expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, side), "a copy");
    end_.record(side);
  }
  ~CudaCopying() override {
    if (!waited_) cudaEventSynchronize(end_.get());
  }
  CudaCopying(const CudaCopying&) = delete;
  CudaCopying& operator=(const CudaCopying&) = delete;
  void wait() override {
    wait_for(ops_, end_);
    waited_ = true;
  }

 private:
  CUstream_st* ops_;
  Event end_;
  bool waited_ = false;
};

// What a thread works with on its GPU.
class ThreadState {
 public:
  ThreadState(int device, const CudaOptions& options) : device_(device) {
    if (options.libraries) gemms_ = cuda::cublaslt_gemms({options.autotune_cache});
    if (options.libraries && options.mode == cuda::Mode::fast) start_attention();
    expect(cudaMalloc(&block_, kBlock), "memory of the GPU");
    // On the stream: the default one is not waited for, and the first kernels may note faults here.
    expect(cudaMemsetAsync(block_, 0, kBlock, stream()), "memory of the GPU");
    launching_.emplace(cuda::Launch{.stream = stream(),
                                    .mode = options.mode,
                                    .tf32 = options.tf32,
                                    .faults = {block_, DType::int32, {2}},
                                    .gemms = gemms_.get(),
                                    .attention = attention_.get(),
                                    .workspace = {static_cast<std::byte*>(block_) + kForAttention,
                                                  DType::uint8,
                                                  {kBlock - kForAttention}}});
  }
  ~ThreadState() {
    launching_.reset();
    cudaStreamSynchronize(stream());
    cudaFree(block_);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  int device() const { return device_; }
  CUstream_st* stream() const { return stream_.get(); }
  // Of copies beside it, one for each direction: a GPU has an engine for each.
  CUstream_st* side(bool in) {
    std::optional<Stream>& side = in ? copies_in_ : copies_out_;
    if (!side) side.emplace();
    return side->get();
  }
  Staging& staging() { return staging_; }
  LibraryUse libraries() const {
    LibraryUse use;
    if (gemms_) add(*gemms_, "cublaslt", use);
    if (attention_) add(*attention_, "cudnn", use);
    if (!without_attention_.empty()) use.refusals.push_back({"cudnn", without_attention_, 1});
    return use;
  }

  void synchronize() {
    Faults faults{};
    expect(cudaMemcpyAsync(&faults, block_, sizeof faults, cudaMemcpyDeviceToHost, stream()),
           "the GPU");
    expect(cudaStreamSynchronize(stream()), "the GPU");
    if (faults[0] == 0) return;
    expect(cudaMemsetAsync(block_, 0, sizeof faults, stream()), "the GPU");
    cuda::throw_fault(static_cast<cuda::Fault>(faults[0]), faults[1]);
  }

 private:
  using Faults = std::array<std::int32_t, 2>;
  template <class Library>
  static void add(const Library& library, const char* name, LibraryUse& use) {
    use.versions.emplace_back(name, library.version());
    for (const auto& [why, times] : library.refusals()) use.refusals.push_back({name, why, times});
    for (const auto& choice : library.choices()) use.choices.push_back(choice);
  }
  // The fault word, and behind it what a library's forward attention may use (256 B with 9.19).
  static constexpr std::int64_t kBlock = 64 << 10, kForAttention = 256;

  // Without cuDNN, in the build or here, the kernels of our own attend: slower, and said so.
  void start_attention() {
    try {
      attention_ = cuda::cudnn_attention();
    } catch (const Error& error) {
      without_attention_ = error.message();
    }
  }
  int device_;
  Stream stream_;
  std::optional<Stream> copies_in_, copies_out_;
  Staging staging_;
  void* block_ = nullptr;
  std::unique_ptr<cuda::Gemms> gemms_;
  std::unique_ptr<cuda::AttentionLibrary> attention_;
  std::string without_attention_;  // why
  std::optional<cuda::Launching> launching_;
};

thread_local std::unique_ptr<ThreadState> this_thread;

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const CudaOptions& options) : index_(index), options_(options) {
    cudaDeviceProp properties{};
    expect(cudaGetDeviceProperties(&properties, index), "the GPU");
    name_ = properties.name;
  }
  void use(const CudaOptions& options) {
    const std::lock_guard lock(mutex_);
    options_ = options;
  }

  models::Device kind() const override { return models::Device::cuda; }
  std::string name() const override { return name_; }
  const kernels::KernelTable& kernels() const override {
    state();
    return kernels::cuda_kernels();
  }
  std::unique_ptr<Region> reserve(Bytes most) override {
    state();
    if (auto memory = cuda_virtual_memory(index_)) return growing_region(std::move(memory), most);
    return std::make_unique<WholeRegion>(most, options().ranks);
  }
  Device& host(bool pinned) override {
    state();  // page-locking needs the GPU's context
    return pinned ? pinned_host() : host_device();
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    expect(cudaMemcpyAsync(to, from, size(bytes), cudaMemcpyDeviceToDevice, state().stream()),
           "a copy");
  }
  // `to` and `from` may be offloaded states, which are on the host: the driver knows whose an
  // address is.
  void copy_in(void* to, const void* host, Bytes bytes) override {
    if (size(bytes) <= Staging::kLargest)
      return state().staging().copy_in(to, host, size(bytes), state().stream());
    // `host` may be pinned, and is then read until the stream is there.
    expect(cudaMemcpyAsync(to, host, size(bytes), cudaMemcpyDefault, state().stream()), "a copy");
    expect(cudaStreamSynchronize(state().stream()), "a copy");
  }
  void copy_out(void* host, const void* from, Bytes bytes) override {
    expect(cudaMemcpyAsync(host, from, size(bytes), cudaMemcpyDefault, state().stream()), "a copy");
    expect(cudaStreamSynchronize(state().stream()), "a copy");
  }
  std::unique_ptr<Copying> start_copy_in(void* to, const void* host, Bytes bytes) override {
    return std::make_unique<CudaCopying>(to, host, size(bytes), state().side(true),
                                         state().stream());
  }
  std::unique_ptr<Copying> start_copy_out(void* host, const void* from, Bytes bytes) override {
    return std::make_unique<CudaCopying>(host, from, size(bytes), state().side(false),
                                         state().stream());
  }
  void fill_bytes(void* to, unsigned char value, Bytes bytes) override {
    expect(cudaMemsetAsync(to, value, size(bytes), state().stream()), "a fill");
  }
  void synchronize() override { state().synchronize(); }
  std::unique_ptr<Stopwatch> stopwatch() override {
    return std::make_unique<CudaStopwatch>(state().stream());
  }
  LibraryUse libraries() override { return state().libraries(); }

 private:
  CudaOptions options() const {
    const std::lock_guard lock(mutex_);
    return options_;
  }
  ThreadState& state() const {
    if (this_thread == nullptr) {
      expect(cudaSetDevice(index_), "the GPU");
      const std::lock_guard lock(mutex_);
      this_thread = std::make_unique<ThreadState>(index_, options_);
    }
    check(this_thread->device() == index_, ErrorKind::internal, "a thread works on one GPU");
    return *this_thread;
  }

  int index_;
  std::string name_;
  mutable std::mutex mutex_;
  CudaOptions options_;
};

std::string visible_text() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : " (CUDA_VISIBLE_DEVICES=" + std::string(visible) + ")";
}

}  // namespace

std::string why_no_cuda(int index) {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "no NVIDIA driver: libcuda.so.1 was not found (install the driver; in a container, "
           "start "
           "it with its GPUs: --gpus all); --device cpu needs none";
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    return "the NVIDIA driver is for CUDA " + version_text(driver) + ", this build needs " +
           version_text(CUDART_VERSION);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    return "no GPU: the driver sees none" + visible_text();
  if (status != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(status);
  if (index < 0 || index >= count)
    return "no GPU " + std::to_string(index) + ": this process sees " + std::to_string(count) +
           ", counted from 0" + visible_text();
  return {};
}

Device& cuda_device(int index, const CudaOptions& options) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<CudaDevice>> devices;
  const std::lock_guard lock(mutex);
  auto& device = devices[index];
  if (device == nullptr) {
    const std::string why = why_no_cuda(index);
    check(why.empty(), ErrorKind::device, why);
    device = std::make_unique<CudaDevice>(index, options);
  } else {
    device->use(options);
  }
  return *device;
}

}  // namespace plimsoll::runtime
