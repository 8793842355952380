#include "runtime/memory.h"

#include <new>

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

std::string Memory::what_lives(const std::string& why) const {
  return "; " + std::to_string(arena_.in_use().value()) + " of " +
         std::to_string(arena_.limit().value()) + " B are in use" + why + ":\n" +
         ledger_.live_table(kTableLines);
}

void Memory::fail_without_host_memory() const {
  const std::string& op = ledger_.op_name();
  fail(ErrorKind::out_of_memory,
       "rank " + std::to_string(rank_) +
           ": the host has no memory left for what a step needs beside its tensors" +
           (op.empty() ? "" : (ledger_.in_op() ? ", in op " : ", after op ") + op) +
           what_lives(""));
}

Tensor Memory::allocate(std::string name, models::Category category, DType dtype, Extents shape) {
  const Bytes bytes = storage(Count(shape.elements()), dtype);
  if (bytes == Bytes(0)) return {};
  std::string form = text(shape) + " " + std::string(name_of(dtype));
  const auto refuse = [&](const char* what, const std::string& why) {
    fail(ErrorKind::out_of_memory,
         "rank " + std::to_string(rank_) + ": " + what + " " + name + " " + form + ", " +
             std::to_string(bytes.value()) + " B" +
             (ledger_.op_name().empty() ? "" : ", in op " + ledger_.op_name()) + what_lives(why));
  };
  constexpr const char* kNoRoom = "no room for";
  constexpr const char* kNoHostMemory = "the host has no memory left to note down";
  std::byte* block = nullptr;
  try {
    block = arena_.place(bytes);
  } catch (const std::bad_alloc&) {
    refuse(kNoHostMemory, "");
  } catch (const Error& error) {  // the device's, below our own limit
    if (error.kind() != ErrorKind::out_of_memory) throw;
    refuse(kNoRoom, " (" + error.message() + ")");
  }
  if (block == nullptr) refuse(kNoRoom, "");
  Tensor tensor;
  try {
    tensor.entry_ = ledger_.allocated(std::move(name), std::move(form), category, bytes);
  } catch (const std::bad_alloc&) {
    arena_.release(block);
    refuse(kNoHostMemory, "");
  }
  if (options_.poison) device_.fill_bytes(block, kPoison, bytes);
  tensor.memory_ = this;
  tensor.view_ = {block, dtype, shape};
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
