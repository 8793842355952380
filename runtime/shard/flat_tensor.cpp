#include "runtime/shard/flat_tensor.h"

namespace plimsoll::runtime::shard {

namespace {

// Of one part alone the message of an out-of-memory error can show the elements.
Tensor allocate(Memory& memory, std::string name, Category category,
                const FlatTensor::Sizes& sizes) {
  Bytes bytes;
  std::size_t parts = 0;
  FlatTensor::PartSize only;
  for (const FlatTensor::PartSize& size : sizes) {
    if (size.elements == 0) continue;
    bytes += storage(Count(size.elements), size.dtype);
    only = size;
    ++parts;
  }
  if (parts == 1) return memory.allocate(std::move(name), category, only.dtype, {only.elements});
  return memory.allocate(std::move(name), category, DType::uint8, {bytes.value()});
}

}  // namespace

FlatTensor::FlatTensor(Memory& memory, std::string name, Category category, const Sizes& sizes)
    : storage_(allocate(memory, std::move(name), category, sizes)) {
  if (!storage_) return;
  auto* at = static_cast<std::byte*>(storage_.view().data);
  for (std::size_t p = 0; p < kParts; ++p) {
    if (sizes[p].elements == 0) continue;
    views_[p] = {at, sizes[p].dtype, {sizes[p].elements}};
    at += storage(Count(sizes[p].elements), sizes[p].dtype).value();
  }
}

}  // namespace plimsoll::runtime::shard
