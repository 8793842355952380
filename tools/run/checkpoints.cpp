#include "tools/run/checkpoints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "models/base/file_error.h"
#include "runtime/io/digest.h"
#include "runtime/saved_states.h"

namespace plimsoll::tools {

namespace {
namespace fs = std::filesystem;
namespace io = runtime::io;

constexpr std::int64_t kTold = 1 << 16;  // tokens by which data are told apart

std::uint64_t digest_of(const io::TokenSource& data) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kTold, data.tokens())));
  data.read(0, ids);
  io::Digest digest;
  digest.add(std::as_bytes(std::span(ids)));
  return digest.value();
}

void expect_writable(const std::string& folder, bool& made) {
  const auto refuse = [&](int error) {
    fail(kind_of_write_failure(error), "--save-checkpoint " + folder + ": " + std::strerror(error));
  };
  std::error_code error;
  made = fs::create_directories(folder, error);
  if (error) refuse(error.value());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse(errno);
}

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

}  // namespace

Checkpoints::Checkpoints(const RunOptions& given) : options_(given) {
  RunOptions& o = options_;
  if (!o.resume.empty()) {
    for (const char* option : {"weights", "adapter"})
      check(!o.given.contains(option), ErrorKind::bad_input, [&] {
        return fmt::format("--{}: the checkpoint of --resume {} has its own", option, o.resume);
      });
    from_ = io::read_newest_checkpoint(o.resume, found_);
    const auto taken_over = [&](const char* option, auto& value, auto before) {
      if (!o.given.contains(option)) value = before;
    };
    check(!o.given.contains("seed") || o.seed == from_->seed, ErrorKind::bad_input, [&] {
      return fmt::format("--seed {}: {} is of --seed {}", o.seed, origin(), from_->seed);
    });
    o.seed = from_->seed;
    taken_over("lr", o.learning_rate, from_->learning_rate);
    taken_over("warmup", o.warmup, from_->warmup);
    taken_over("max-norm", o.max_norm, from_->max_norm);
    taken_over("weight-decay", o.weight_decay, from_->weight_decay);
    taken_over("steps", o.steps, checked_add(from_->steps, o.steps));
    check(o.steps > from_->steps || o.seconds > 0, ErrorKind::bad_input, [&] {
      return fmt::format("--steps {}: {} has made {} already, and they count", o.steps, origin(),
                         from_->steps);
    });
  }
  check(o.save_every == 0 || !o.save_checkpoint.empty(), ErrorKind::bad_input,
        "--save-every: where to is missing, --save-checkpoint FOLDER");
  if (o.save_checkpoint.empty()) return;
  const auto other = io::newest_checkpoint(o.save_checkpoint);
  check(!other || is_same_folder(o.save_checkpoint, o.resume), ErrorKind::bad_input, [&] {
    return fmt::format(
        "--save-checkpoint {}: there is one already, {}: go on from it (--resume), or "
        "give another folder",
        o.save_checkpoint, other->filename().string());
  });
  expect_writable(o.save_checkpoint, made_);
}

Checkpoints::~Checkpoints() {
  if (options_.save_checkpoint.empty()) return;
  io::remove_unfinished_checkpoints(options_.save_checkpoint);
  std::error_code ignored;
  if (made_) fs::remove(options_.save_checkpoint, ignored);  // nothing, where something is in it
}

void Checkpoints::resume(const io::TokenSource& data, io::BatchShape& batches) const {
  if (!from_) return;
  check(batches.length == from_->length, ErrorKind::bad_input, [&] {
    return fmt::format(
        "--seq-len {}: {} has counted its data in sequences of {}, and where it was in "
        "them is not known in others",
        batches.length, origin(), from_->length);
  });
  check(data.tokens() == from_->data_tokens && digest_of(data) == from_->data_digest,
        ErrorKind::bad_input, [&] {
          return fmt::format("--data: {} ({} tokens) is not what {} was trained on: {} ({} tokens)",
                             data.origin(), data.tokens(), origin(), from_->data,
                             from_->data_tokens);
        });
  batches.first_step = from_->steps;
  batches.taken = from_->sequences;
}

void Checkpoints::load(runtime::Trainer& trainer) const {
  const std::vector<std::string> all =
      trainer.world().gather(fmt::format("{} {:016x}", from_->steps, from_->shards.front().digest));
  const auto other =
      std::ranges::find_if(all, [&](const std::string& one) { return one != all[0]; });
  check(other == all.end(), ErrorKind::bad_input, [&] {
    return fmt::format("rank {} has found another checkpoint in {} than rank 0: all go on from one",
                       other - all.begin(), options_.resume);
  });
  runtime::load_states(trainer, found_, *from_);
}

void Checkpoints::stepped(runtime::Trainer& trainer, std::int64_t step, const io::Batches& batches,
                          const io::TokenSource& data) const {
  if (options_.save_every > 0 && step % options_.save_every == 0) save(trainer, batches, data);
}

void Checkpoints::ended(runtime::Trainer& trainer, const io::Batches& batches,
                        const io::TokenSource& data) const {
  const std::int64_t step = trainer.counts().steps;
  if (options_.save_checkpoint.empty()) return;
  if (options_.save_every == 0 || step % options_.save_every != 0) save(trainer, batches, data);
}

void Checkpoints::save(runtime::Trainer& trainer, const io::Batches& batches,
                       const io::TokenSource& data) const {
  io::TrainingCheckpoint about;
  about.seed = options_.seed;
  about.learning_rate = options_.learning_rate;
  about.warmup = options_.warmup;
  about.max_norm = options_.max_norm;
  about.weight_decay = options_.weight_decay;
  about.data = data.origin();
  about.data_tokens = data.tokens();
  about.data_digest = digest_of(data);
  about.sequences = batches.taken_before(trainer.counts().steps);
  about.length = batches.length();
  runtime::save_states(trainer, options_.save_checkpoint, std::move(about));
}

}  // namespace plimsoll::tools
