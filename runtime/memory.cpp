#include "runtime/memory.h"

namespace plimsoll::runtime {

namespace {

constexpr std::size_t kTableLines = 12;
constexpr unsigned char kPoison = 0xFF;

}  // namespace

std::string text(const Extents& shape) {
  std::string lengths;
  for (int axis = 0; axis < shape.rank; ++axis)
    lengths += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  return "[" + lengths + "]";
}

Memory::Memory(Device& device, int rank, const MemoryOptions& options)
    : device_(device), rank_(rank), options_(options), arena_(device, options.limit) {}

Tensor Memory::allocate(std::string name, models::Category category, DType dtype, Extents shape) {
  const Bytes bytes = storage(Count(shape.elements()), dtype);
  if (bytes == Bytes(0)) return {};
  const std::string form = text(shape) + " " + std::string(name_of(dtype));
  std::byte* block = nullptr;
  std::string refusal;  // by the device, below our own limit
  try {
    block = arena_.place(bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
    refusal = " (" + error.message() + ")";
  }
  check(block != nullptr, ErrorKind::out_of_memory, [&] {
    return "rank " + std::to_string(rank_) + ": no room for " + name + " " + form + ", " +
           std::to_string(bytes.value()) + " B" +
           (ledger_.op_name().empty() ? "" : ", in op " + ledger_.op_name()) + "; " +
           std::to_string(arena_.in_use().value()) + " of " +
           std::to_string(arena_.limit().value()) + " B are in use" + refusal + ":\n" +
           ledger_.live_table(kTableLines);
  });
  if (options_.poison) device_.fill_bytes(block, kPoison, bytes);
  Tensor tensor;
  tensor.memory_ = this;
  tensor.view_ = {block, dtype, shape};
  tensor.entry_ = ledger_.allocated(std::move(name), form, category, bytes);
  return tensor;
}

void Memory::release(const Tensor& tensor) noexcept {
  if (options_.poison) device_.fill_bytes(tensor.view_.data, kPoison, tensor.bytes());
  ledger_.released(tensor.entry_);
  arena_.release(static_cast<std::byte*>(tensor.view_.data));
}

void Tensor::reset() noexcept {
  if (memory_ == nullptr) return;
  memory_->release(*this);
  memory_ = nullptr;
  view_ = {};
}

}  // namespace plimsoll::runtime
