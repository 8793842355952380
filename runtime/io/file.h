// Files as the readers and writers of this folder want them: bytes at a place, errors that name the
// file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace plimsoll::runtime::io {

// What the files hold is copied as it is.
static_assert(std::endian::native == std::endian::little, "files of weights are little-endian");

// May be read by several threads at once.
class InputFile {
 public:
  // Error{bad_input}: no such file, not a regular file, not readable.
  explicit InputFile(const std::filesystem::path& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  // All of `into`, from byte `at` on. Error{bad_input}: the file ends before, or cannot be read.
  void read(std::int64_t at, std::span<std::byte> into) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

// Written under another name beside `path`; takes its place when it is complete, all at once.
// Error{bad_input}: a path that cannot be written; Error{internal}: a full disk, and the like.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // removes what was not finished

  void write(std::int64_t at, std::span<const std::byte> bytes);
  void finish();

 private:
  [[noreturn]] void refuse(int error) const;

  std::string path_, unfinished_;
  int descriptor_ = -1;
};

}  // namespace plimsoll::runtime::io
