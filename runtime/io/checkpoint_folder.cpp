#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>

#include "models/base/file_error.h"
#include "models/json_reader.h"
#include "runtime/io/checkpoint.h"
#include "runtime/io/digest.h"
#include "runtime/io/file.h"

namespace plimsoll::runtime::io {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBegin = "step-", kUnfinished = ".unfinished",
                           kAbout = "checkpoint.json";
constexpr std::int64_t kMostAbout = 1 << 28;  // bytes of checkpoint.json
constexpr std::size_t kRead = 4 << 20;

// The step of a finished checkpoint's folder.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kBegin)) return std::nullopt;
  const char* const first = name.data() + kBegin.size();
  const char* const end = name.data() + name.size();
  std::int64_t step = 0;
  const auto [stopped, error] = std::from_chars(first, end, step);
  if (error != std::errc() || stopped != end || step < 0) return std::nullopt;
  return step;
}

[[noreturn]] void refuse(const fs::path& path, int error) {
  fail(kind_of_write_failure(error),
       path.string() + ": cannot be written: " + std::strerror(error));
}

void expect(const fs::path& path, const std::error_code& error) {
  if (error) refuse(path, error.value());
}

// A name is on the disk when its folder is.
void sync_folder(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) refuse(path, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL) refuse(path, error);  // not every file system syncs folders
}

}  // namespace

std::string shard_name(std::int64_t shard, std::int64_t shards) {
  return fmt::format("shard-{}-of-{}.safetensors", shard, shards);
}

std::optional<fs::path> newest_checkpoint(const fs::path& folder) {
  std::optional<fs::path> newest;
  std::int64_t step = -1;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::optional<std::int64_t> its = step_of(at->path().filename().string());
    if (!its || *its <= step || !fs::exists(at->path() / kAbout)) continue;
    step = *its;
    newest = at->path();
  }
  return newest;
}

TrainingCheckpoint read_newest_checkpoint(const fs::path& folder, fs::path& found) {
  const std::optional<fs::path> newest = newest_checkpoint(folder);
  check(newest.has_value(), ErrorKind::bad_input, [&] {
    return folder.string() +
           ": there is no training checkpoint (step-N, as --save-checkpoint "
           "writes it)";
  });
  found = *newest;
  const std::string about = (found / kAbout).string();
  return parse_checkpoint(models::read_text_file(about, kMostAbout), about);
}

void check_shard(const fs::path& path, const CheckpointShard& shard) {
  const InputFile file(path);
  check(file.size() == shard.bytes, ErrorKind::bad_input, [&] {
    return fmt::format("{}: has {} bytes, and was written with {}", path.string(), file.size(),
                       shard.bytes);
  });
  Digest digest;
  std::vector<std::byte> buffer(kRead);
  for (std::int64_t at = 0; at < shard.bytes;) {
    const auto bytes = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(buffer), shard.bytes - at)));
    file.read(at, bytes);
    digest.add(bytes);
    at += std::ssize(bytes);
  }
  check(digest.value() == shard.digest, ErrorKind::bad_input,
        [&] { return path.string() + ": damaged: its bytes are not those that were written"; });
}

UnfinishedCheckpoint::UnfinishedCheckpoint(fs::path folder, std::int64_t step)
    : folder_(std::move(folder)),
      finished_(folder_ / fmt::format("{}{:08}", kBegin, step)),
      unfinished_(finished_.string() + std::string(kUnfinished)) {}

void UnfinishedCheckpoint::begin() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  expect(folder_, error);
  remove_unfinished_checkpoints(folder_);
  fs::create_directory(unfinished_, error);
  expect(unfinished_, error);
}

void UnfinishedCheckpoint::commit(const TrainingCheckpoint& checkpoint) const {
  const std::int64_t shards = std::ssize(checkpoint.shards);
  for (std::int64_t i = 0; i < shards; ++i) {
    const fs::path path = unfinished_ / shard_name(i, shards);
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    check(!error && bytes == static_cast<std::uintmax_t>(
                                 checkpoint.shards[static_cast<std::size_t>(i)].bytes),
          ErrorKind::internal, [&] {
            return path.string() +
                   ": not as its rank has written it: all ranks need one file "
                   "system for checkpoints";
          });
  }
  OutputFile about(unfinished_ / kAbout);
  const std::string text = checkpoint_json(checkpoint);
  about.write(0, std::as_bytes(std::span(text)));
  about.finish();
  sync_folder(unfinished_);
  std::error_code error;
  fs::rename(unfinished_, finished_, error);
  expect(finished_, error);
  sync_folder(folder_);
  // The ones before: under a name that nobody goes on from, then gone.
  for (auto at = fs::directory_iterator(folder_, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::optional<std::int64_t> its = step_of(at->path().filename().string());
    std::error_code ignored;
    if (its && *its < checkpoint.steps)
      fs::rename(at->path(), at->path().string() + std::string(kUnfinished), ignored);
  }
  remove_unfinished_checkpoints(folder_);
}

void remove_unfinished_checkpoints(const fs::path& folder) noexcept {
  try {
    std::error_code error;
    std::vector<fs::path> found;
    for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
         at.increment(error)) {
      std::string name = at->path().filename().string();
      if (!name.ends_with(kUnfinished)) continue;
      name.resize(name.size() - kUnfinished.size());
      if (step_of(name)) found.push_back(at->path());
    }
    for (const fs::path& path : found) fs::remove_all(path, error);
  } catch (const std::exception&) {  // they are taken away the next time
  }
}

}  // namespace plimsoll::runtime::io
