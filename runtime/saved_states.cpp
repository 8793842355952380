#include "runtime/saved_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "models/run_names.h"
#include "models/safetensors_reader.h"
#include "runtime/io/digest.h"
#include "runtime/io/float_storage.h"
#include "runtime/io/weight_file.h"

namespace plimsoll::runtime {

namespace {

namespace fs = std::filesystem;
using shard::Overlap;
using shard::Part;
using shard::State;

constexpr std::array kSaved{State::weights,       State::masters,      State::first_moment,
                            State::second_moment, State::first_scales, State::second_scales,
                            State::projector};
constexpr std::array kPartNames{"frozen", "packed", "trained", "adapters"};
static_assert(kPartNames.size() == shard::kParts, "each part has a name");
constexpr std::int64_t kAtOnce = 4 << 20;  // bytes that stand on the host

// A flat part of a state, as this rank has it: elements `first` … of all.
struct Flat {
  std::string name;
  TensorView view;
  std::int64_t first = 0;
  std::int64_t piece = 0;  // elements of each of the sharding group's pieces
};

std::vector<Flat> flats_of(Trainer& trainer) {
  std::vector<Flat> all;
  for (const auto& [unit, parameters] : trainer.model().units())
    for (const State state : kSaved)
      for (const Part part : shard::kAllParts) {
        const TensorView view = unit.stored_part(state, part);
        if (!view) continue;
        const Overlap pieces = unit.stored_pieces(state);
        const std::int64_t piece = view.elements() / pieces.count;
        all.push_back({unit.name_of(state) + "." + kPartNames[static_cast<std::size_t>(part)], view,
                       pieces.first * piece, piece});
      }
  // As the format's own writer has it: wide types first, so that each begins at its width.
  std::ranges::stable_sort(
      all, [](const Flat& a, const Flat& b) { return bits(a.view.dtype) > bits(b.view.dtype); });
  return all;
}

std::vector<io::CheckpointParameter> parameters_of(Trainer& trainer) {
  std::vector<io::CheckpointParameter> all;
  for (const auto& [unit, parameters] : trainer.model().units())
    for (const ModelParameter& p : parameters) all.push_back({p.name, p.shape, p.trained});
  return all;
}

// Bytes in 4 bits say nothing of how they are to be read.
std::string storage_of_base(const Trainer& trainer) {
  const auto& quantize = trainer.strategy().quantize;
  return quantize ? std::string(quantize->storage->name) : "none";
}

io::CheckpointShard write_shard(Trainer& trainer, const fs::path& path) {
  const std::int64_t shard = trainer.shards().rank();
  std::vector<io::SavedTensor> tensors;
  std::vector<TensorView> pieces;
  for (const Flat& flat : flats_of(trainer)) {
    tensors.push_back({flat.name, flat.view.dtype, {flat.piece}});
    pieces.push_back(comm::slice(flat.view, shard * flat.piece - flat.first, flat.piece));
  }
  std::vector<std::int64_t> begins;
  const std::string header = io::safetensors_header(tensors, begins);
  io::OutputFile file(path);
  io::Digest digest;
  std::int64_t at = 0;
  const auto put = [&](std::span<const std::byte> bytes) {
    file.write(at, bytes);
    digest.add(bytes);
    at += std::ssize(bytes);
  };
  put(std::as_bytes(std::span(header)));
  std::vector<std::byte> buffer(kAtOnce);
  for (const TensorView& piece : pieces) {
    const std::int64_t bytes = storage(Count(piece.elements()), piece.dtype).value();
    for (std::int64_t done = 0; done < bytes; done += kAtOnce) {
      const std::int64_t n = std::min(kAtOnce, bytes - done);
      trainer.worker().device.copy_out(buffer.data(),
                                       static_cast<const std::byte*>(piece.data) + done, Bytes(n));
      put(std::span(buffer).first(static_cast<std::size_t>(n)));
    }
  }
  file.finish();
  return {at, digest.value()};
}

std::string text_of(const io::CheckpointParameter& p) {
  return fmt::format("{} {}, {}", p.name, text(p.shape), p.trained ? "trained" : "frozen");
}

void expect_the_same(Trainer& trainer, const fs::path& found, const io::TrainingCheckpoint& about) {
  const auto expect = [&](const char* option, const std::string& there, std::string_view here) {
    check(there == here, ErrorKind::bad_input, [&] {
      return fmt::format("{}: is of --{} {}, this run is of --{} {}", found.string(), option, there,
                         option, here);
    });
  };
  expect("precision", about.precision, name_of(trainer.strategy().precision));
  expect("optimizer", about.optimizer, name_of(trainer.strategy().optimizer));
  expect("quantize", about.quantize, storage_of_base(trainer));
  const std::vector<io::CheckpointParameter> ours = parameters_of(trainer);
  const auto [there, here] = std::ranges::mismatch(about.parameters, ours);
  if (there == about.parameters.end() && here == ours.end()) return;
  fail(ErrorKind::bad_input,
       fmt::format("{}: is of another model: parameter {} is {} there and {} here", found.string(),
                   here - ours.begin() + 1,
                   there == about.parameters.end() ? "none" : text_of(*there),
                   here == ours.end() ? "none" : text_of(*here)));
}

// A file's tensors into what this rank stores of them.
class ShardReader {
 public:
  ShardReader(Trainer& trainer, const fs::path& path, std::int64_t shard)
      : trainer_(trainer), shard_(shard), file_(path), buffer_(kAtOnce) {
    for (models::StoredTensor& tensor : models::read_safetensors_header(path).tensors)
      stored_[tensor.name] = std::move(tensor);
  }

  // Elements of `flat` that were found here.
  std::int64_t read(const Flat& flat) {
    const auto it = stored_.find(flat.name);
    check(it != stored_.end(), ErrorKind::bad_input,
          [&] { return file_.path() + ": tensor '" + flat.name + "' is not in it"; });
    const models::StoredTensor& tensor = it->second;
    const DType dtype = flat.view.dtype;
    const bool same = tensor.shape.size() == 1 &&
                      tensor.dtype == (dtype == DType::uint8 ? "U8" : io::stored_name(dtype));
    check(same, ErrorKind::bad_input, [&] {
      return fmt::format("{}: tensor '{}' is stored as {}, and not as {} in a row", file_.path(),
                         flat.name, tensor.dtype, name_of(dtype));
    });
    const std::int64_t length = tensor.shape[0], begin = checked_multiply(shard_, length);
    const std::int64_t first = std::max(begin, flat.first);
    const std::int64_t end =
        std::min(checked_add(begin, length), flat.first + flat.view.elements());
    for (std::int64_t at = first; at < end;) {
      const std::int64_t n = std::min(end - at, kAtOnce * 8 / bits(dtype));
      const Bytes bytes = storage(Count(n), dtype);
      file_.read(tensor.begin + storage(Count(at - begin), dtype).value(),
                 std::span(buffer_).first(static_cast<std::size_t>(bytes.value())));
      trainer_.worker().device.copy_in(comm::slice(flat.view, at - flat.first, n).data,
                                       buffer_.data(), bytes);
      at += n;
    }
    return length;
  }

  void expect_no_others(const std::vector<Flat>& flats) const {
    std::set<std::string_view> ours;
    for (const Flat& flat : flats) ours.insert(flat.name);
    for (const auto& [name, tensor] : stored_)
      check(ours.contains(name), ErrorKind::bad_input,
            [&, &its = name] { return file_.path() + ": no state of this run is '" + its + "'"; });
  }

 private:
  Trainer& trainer_;
  std::int64_t shard_;
  io::InputFile file_;
  std::map<std::string, models::StoredTensor> stored_;
  std::vector<std::byte> buffer_;
};

std::int64_t length_of(const shard::FlatPart& part, State state) {
  switch (state) {
    case State::first_scales:
    case State::second_scales:
      return part.states.scales(part.length);
    case State::first_moment:
    case State::second_moment:
      return part.projects ? part.moments : part.length;
    case State::projector:
      return part.bases;
    default:
      return part.length;
  }
}

// Elements of a flat part that are no padding at its end.
std::map<std::string, std::int64_t> lengths_of(Trainer& trainer) {
  std::map<std::string, std::int64_t> lengths;
  for (const auto& [unit, parameters] : trainer.model().units())
    for (const State state : kSaved)
      for (const Part part : shard::kAllParts) {
        if (!unit.stored_part(state, part)) continue;
        const shard::FlatPart& flat = unit.layout().part(part);
        lengths[unit.name_of(state) + "." + kPartNames[static_cast<std::size_t>(part)]] =
            length_of(flat, state);
      }
  return lengths;
}

}  // namespace

void save_states(Trainer& trainer, const fs::path& folder, io::TrainingCheckpoint about) {
  comm::Communicator& world = trainer.world();
  const TrainerCounts counts = trainer.counts();
  const io::UnfinishedCheckpoint unfinished(folder, counts.steps);
  if (world.rank() == 0) unfinished.begin();
  world.barrier();
  const std::int64_t shards = trainer.shards().size();
  io::CheckpointShard written;
  const bool writes = trainer.replicas().rank() == 0;
  if (writes)
    written =
        write_shard(trainer, unfinished.path() / io::shard_name(trainer.shards().rank(), shards));
  const std::vector<std::string> all = world.gather(
      writes ? fmt::format("{} {} {}", trainer.shards().rank(), written.bytes, written.digest)
             : std::string());
  if (world.rank() != 0) return;
  about.steps = counts.steps;
  about.taken = counts.taken;
  about.loss_scale = counts.loss_scale;
  about.good_steps = counts.good_steps;
  about.precision = name_of(trainer.strategy().precision);
  about.optimizer = name_of(trainer.strategy().optimizer);
  about.quantize = storage_of_base(trainer);
  about.parameters = parameters_of(trainer);
  about.shards.resize(static_cast<std::size_t>(shards));
  for (const std::string& one : all) {
    if (one.empty()) continue;
    std::size_t used = 0;
    const auto shard = static_cast<std::size_t>(std::stoull(one, &used));
    const std::string rest = one.substr(used);
    about.shards.at(shard).bytes = std::stoll(rest, &used);
    about.shards[shard].digest = std::stoull(rest.substr(used));
  }
  unfinished.commit(about);
}

void load_states(Trainer& trainer, const fs::path& found, const io::TrainingCheckpoint& about) {
  expect_the_same(trainer, found, about);
  const auto shards = std::ssize(about.shards);
  comm::Communicator& world = trainer.world();
  for (std::int64_t i = world.rank(); i < shards; i += world.size())
    io::check_shard(found / io::shard_name(i, shards), about.shards[static_cast<std::size_t>(i)]);
  world.barrier();  // nobody reads what another rank finds damaged
  const std::vector<Flat> flats = flats_of(trainer);
  const std::map<std::string, std::int64_t> lengths = lengths_of(trainer);
  std::map<std::string, std::int64_t> there;
  for (std::int64_t i = 0; i < shards; ++i) {
    ShardReader reader(trainer, found / io::shard_name(i, shards), i);
    reader.expect_no_others(flats);
    for (const Flat& flat : flats) {
      std::int64_t& elements = there[flat.name];
      const std::int64_t length = reader.read(flat);
      check(elements == checked_multiply(length, i), ErrorKind::bad_input, [&] {
        return fmt::format("{}: tensor '{}' is as long in no other shard", found.string(),
                           flat.name);
      });
      elements += length;
    }
  }
  for (const auto& [name, elements] : lengths)
    check(there[name] >= elements, ErrorKind::bad_input, [&, &its = name, wanted = elements] {
      return fmt::format("{}: of '{}' {} of {} elements are there", found.string(), its, there[its],
                         wanted);
    });
  trainer.restore({about.steps, about.taken, about.loss_scale, about.good_steps});
}

}  // namespace plimsoll::runtime
