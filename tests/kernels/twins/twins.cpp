#include "tests/kernels/twins/twins.h"

#include <cstring>

namespace plimsoll::kernels::test {

namespace {

constexpr std::size_t kGuard = 256;  // bytes on either side that nothing may write
constexpr std::byte kGuardByte{0xa5};

bool is_none(const Tensor& tensor) {
  return tensor.shape == Extents{0};
}

// A tensor in device memory, between guards.
class Guarded {
 public:
  Guarded(const Tensor& tensor, bool misaligned)
      : tensor_(tensor),
        offset_(kGuard + (misaligned ? static_cast<std::size_t>(bits(tensor.dtype) / 8) : 0)),
        image_(offset_ + tensor.bytes.size() + kGuard, kGuardByte),
        at_(DeviceMemory::allocate(image_.size())) {
    std::copy(tensor.bytes.begin(), tensor.bytes.end(),
              image_.begin() + static_cast<std::ptrdiff_t>(offset_));
    DeviceMemory::upload(at_, image_.data(), image_.size());
  }
  ~Guarded() { DeviceMemory::release(at_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  TensorView view() const {
    if (is_none(tensor_)) return {};
    return {at_ + offset_, tensor_.dtype, tensor_.shape};
  }
  Tensor back() {
    DeviceMemory::download(image_.data(), at_, image_.size());
    const auto written = [](std::byte b) { return b != kGuardByte; };
    const auto first = image_.begin() + static_cast<std::ptrdiff_t>(offset_);
    const auto last = first + static_cast<std::ptrdiff_t>(tensor_.bytes.size());
    CHECK_MESSAGE(std::none_of(image_.begin(), first, written), "written before an operand");
    CHECK_MESSAGE(std::none_of(last, image_.end(), written), "written behind an operand");
    Tensor result = tensor_;
    std::copy(first, last, result.bytes.begin());
    return result;
  }

 private:
  Tensor tensor_;
  std::size_t offset_;
  std::vector<std::byte> image_;
  std::byte* at_;
};

}  // namespace

std::vector<Tensor> on_device(const std::vector<Tensor>& operands, const Op& op, cuda::Mode mode,
                              bool misaligned, bool libraries) {
  std::vector<std::unique_ptr<Guarded>> memory;
  Views views;
  for (const Tensor& tensor : operands) {
    memory.push_back(std::make_unique<Guarded>(tensor, misaligned));
    views.push_back(memory.back()->view());
  }
  Guarded faults(Tensor({2}, DType::int32), false);
  cuda::Launch launch;
  launch.mode = mode;
  Guarded workspace(Tensor({1 << 18}, DType::fp32), false);
  if (libraries) {
    launch.gemms = DeviceMemory::library();
    launch.attention = DeviceMemory::attention();
    launch.workspace = workspace.view();
  }
  launch.faults = faults.view();
  const cuda::Launching launching(launch);
  DeviceMemory::run_otherwise(misaligned);
  op(cuda_kernels(), views);
  std::vector<Tensor> results;
  for (const auto& tensor : memory) results.push_back(tensor->back());
  const Tensor fault = faults.back();
  cuda::throw_fault(static_cast<cuda::Fault>(static_cast<std::int32_t>(fault.at(0))),
                    static_cast<std::int32_t>(fault.at(1)));
  return results;
}

namespace {
std::vector<Tensor> on_host(std::vector<Tensor> operands, const Op& op) {
  Views views;
  for (Tensor& tensor : operands) views.push_back(is_none(tensor) ? TensorView() : tensor);
  op(host_kernels(), views);
  return operands;
}
}  // namespace

Twins twins(const std::vector<Tensor>& operands, const Op& op, cuda::Mode mode) {
  const Twins t{on_host(operands, op), on_device(operands, op, mode, false)};
  const std::vector<Tensor> again = on_device(operands, op, mode, true);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    CAPTURE(i);
    CHECK_MESSAGE(again[i] == t.cuda[i], "another alignment, other bits");
  }
  return t;
}

Twins library_twins(const std::vector<Tensor>& operands, const Op& op, cuda::Mode mode) {
  return {on_host(operands, op), on_device(operands, op, mode, false, true)};
}

}  // namespace plimsoll::kernels::test
