// A run that goes on from a training checkpoint, and those that it writes.
#pragma once

#include <filesystem>
#include <optional>

#include "runtime/io/batches.h"
#include "runtime/io/checkpoint.h"
#include "runtime/trainer.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

class Checkpoints {
 public:
  // Reads what --resume names. Error{bad_input}: nothing to go on from, or by these options not;
  // --save-checkpoint names a folder that cannot be written, or has another run's.
  explicit Checkpoints(const RunOptions& given);
  ~Checkpoints();  // when no rank runs any more: what is unfinished goes
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Those given; what was not given is as in the run that goes on.
  const RunOptions& options() const { return options_; }
  bool resumes() const { return from_.has_value(); }
  std::int64_t steps() const { return from_ ? from_->steps : 0; }  // that were made before
  std::string origin() const { return found_.string(); }

  // Goes on where the data were left. Error{bad_input}: other data, or another length.
  void resume(const runtime::io::TokenSource& data, runtime::io::BatchShape& batches) const;
  // On all ranks.
  void load(runtime::Trainer& trainer) const;
  // On all ranks, after step number `step` (from 1) and when there is none any more.
  void stepped(runtime::Trainer& trainer, std::int64_t step, const runtime::io::Batches& batches,
               const runtime::io::TokenSource& data) const;
  void ended(runtime::Trainer& trainer, const runtime::io::Batches& batches,
             const runtime::io::TokenSource& data) const;

 private:
  void save(runtime::Trainer& trainer, const runtime::io::Batches& batches,
            const runtime::io::TokenSource& data) const;

  RunOptions options_;
  std::optional<runtime::io::TrainingCheckpoint> from_;
  std::filesystem::path found_;
  bool made_ = false;  // the folder
};

}  // namespace plimsoll::tools
