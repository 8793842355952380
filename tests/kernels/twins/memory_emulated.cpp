#include <cstdlib>
#include <cstring>

#include "tests/kernels/emulator/fibers.h"
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

const char* DeviceMemory::missing() {
  return nullptr;
}
std::byte* DeviceMemory::allocate(std::size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256}));
}
void DeviceMemory::release(std::byte* at) {
  ::operator delete (at, std::align_val_t{256});
}
void DeviceMemory::upload(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void DeviceMemory::download(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
cuda::Gemms* DeviceMemory::library() {
  return nullptr;
}
cuda::AttentionLibrary* DeviceMemory::attention() {
  return nullptr;
}
void DeviceMemory::run_otherwise(bool otherwise) {
  // Of the process: 0 in order and backwards, else two drawn orders.
  static const char* const seed = std::getenv("PLIMSOLL_EMULATOR_SEED");
  static const std::uint64_t first = seed == nullptr ? 0 : 2 * std::strtoull(seed, nullptr, 10);
  emulator::order = first + (otherwise ? 1 : 0);
}

}  // namespace plimsoll::kernels::test
