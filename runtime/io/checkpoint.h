// A training checkpoint as a folder: what it says of itself, and how it comes into its place.
//
//   DIR/step-00000012/checkpoint.json       TrainingCheckpoint
//                     shard-0-of-4.safetensors …   a piece of every state each
//
// It is written as step-00000012.unfinished and takes its name when all of it is on the disk; then
// the one before goes. Whenever a process or the machine ends, the newest step-N is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor_view.h"

namespace plimsoll::runtime::io {

struct CheckpointParameter {
  std::string name;
  kernels::Extents shape;
  bool trained = true;
  bool operator==(const CheckpointParameter&) const = default;
};

struct CheckpointShard {
  std::int64_t bytes = 0;
  std::uint64_t digest = 0;  // runtime/io/digest.h
};

struct TrainingCheckpoint {
  std::int64_t steps = 0, taken = 0;  // all, and those that the optimizer took
  double loss_scale = 1;
  std::int64_t good_steps = 0;
  std::uint64_t seed = 0;
  double learning_rate = 0, max_norm = 0, weight_decay = 0;
  std::int64_t warmup = 0;
  // Of the data: what it was, and how many sequences of which length were taken.
  std::string data;
  std::int64_t data_tokens = 0, sequences = 0, length = 0;
  std::uint64_t data_digest = 0;
  std::string precision, optimizer, quantize = "none";
  std::vector<CheckpointParameter> parameters;  // in the order of the flat parts
  std::vector<CheckpointShard> shards;
};

std::string checkpoint_json(const TrainingCheckpoint& checkpoint);
// Error{bad_input} naming `source`: not of that form.
TrainingCheckpoint parse_checkpoint(const std::string& text, const std::string& source);

// The newest in `folder`; nothing where there is none.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder);
// Error{bad_input}: none is there, or it is damaged.
TrainingCheckpoint read_newest_checkpoint(const std::filesystem::path& folder,
                                          std::filesystem::path& found);
std::string shard_name(std::int64_t shard, std::int64_t shards);
// All bytes of the file are as they were written. Error{bad_input}: they are not.
void check_shard(const std::filesystem::path& file, const CheckpointShard& shard);

// One that is being written. `begin` and `commit` on one rank, the shards' files in between.
class UnfinishedCheckpoint {
 public:
  UnfinishedCheckpoint(std::filesystem::path folder, std::int64_t step);
  const std::filesystem::path& path() const { return unfinished_; }
  // Makes the folder, and takes away what an earlier process has left unfinished. Error{bad_input}
  // or Error{internal} (models/base/file_error.h): it cannot be made.
  void begin() const;
  // Error{internal}: a shard is not there as it was written, perhaps on a disk of another machine.
  void commit(const TrainingCheckpoint& checkpoint) const;

 private:
  std::filesystem::path folder_, finished_, unfinished_;
};

// Of a run that failed, and of earlier ones; where nobody writes any more. Nothing is thrown.
void remove_unfinished_checkpoints(const std::filesystem::path& folder) noexcept;

}  // namespace plimsoll::runtime::io
