// What fuzz targets share: an input is read, or refused as the user's; an input that is a file.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "models/base/error.h"
#include "tests/fuzz/targets.h"

namespace plimsoll::tests {

// Refused as the user's fault: anything else that is thrown is ours.
template <class Read>
void refused_or_read(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw Broken("internal error: " + error.message());
    if (error.message().empty()) throw Broken("an error without a message");
  }
}

// A stand-in for a file; gone with the process.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0 ||
        write(descriptor_, content.data(), content.size()) != static_cast<ssize_t>(content.size()))
      throw std::runtime_error("memfd_create or write failed");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace plimsoll::tests
