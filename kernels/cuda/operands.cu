// No kernel: how views become operands of kernels, and how large grids are.
#include "kernels/cuda/operands.h"

namespace plimsoll::kernels::cuda {

namespace {
bool at_16_bytes(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}
}  // namespace

Span span_of(const ConstTensorView& view) {
  // The operands of one launch are a struct of spans whether they are read or written.
  void* data = const_cast<void*>(view.data);
  switch (view.dtype) {
    case DType::fp32:
      return {data, device::Storage::fp32};
    case DType::bf16:
      return {data, device::Storage::bf16};
    case DType::fp16:
      return {data, device::Storage::fp16};
    default:
      check(data == nullptr, ErrorKind::internal, [&] {
        return "a kernel was given " + std::string(name_of(view.dtype)) +
               "; it takes fp32, bf16 and fp16";
      });
      return {};
  }
}

bool aligned(std::initializer_list<ConstTensorView> views) {
  for (const ConstTensorView& view : views)
    if (!at_16_bytes(view.data)) return false;
  return true;
}
bool aligned_rows(std::initializer_list<ConstTensorView> views, std::int64_t width) {
  return width % device::kVector == 0 && aligned(views);
}
bool aligned_columns(const ConstColumns& columns) {
  return columns.stride() % device::kVector == 0 && columns.first % device::kVector == 0 &&
         at_16_bytes(columns.tensor.data);
}

device::Dropper dropper_of(const Dropout& dropout) {
  // Rate 1 drops everything: 2^32 is above every number, and the factor is never used.
  return {.bound = static_cast<std::uint64_t>(std::ldexp(static_cast<double>(dropout.rate), 32)),
          .first_element = dropout.first_element,
          .key = dropout.key,
          .factor = dropout.rate < 1 ? 1 / (1 - dropout.rate) : 0,
          .active = dropout.rate > 0};
}

Grid strided_grid(std::int64_t items) {
  const std::int64_t blocks = std::min(kMostBlocks, ceil_divide(items, kThreads));
  return {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
}

Grid block_each(std::int64_t count, int threads, std::size_t shared_bytes) {
  check(count <= 0x7fffffff, ErrorKind::unsupported, [&] {
    return "a kernel would need " + std::to_string(count) + " blocks, at most 2147483647";
  });
  return {dim3(static_cast<unsigned>(count)), dim3(static_cast<unsigned>(threads)), shared_bytes};
}

}  // namespace plimsoll::kernels::cuda
