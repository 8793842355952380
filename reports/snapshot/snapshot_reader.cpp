#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "reports/snapshot/memory_snapshot.h"
#include "reports/snapshot/pickle_reader.h"
#include "reports/snapshot/snapshot_stack.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
using Id = Pickle::Id;
using Kind = Pickle::Kind;

// Far above any device, and far from where sums would overflow.
constexpr std::int64_t kMostSize = std::int64_t{1} << 50, kMostAddress = std::int64_t{1} << 62;
constexpr std::size_t kMostFrames = 4096;

class SnapshotReader {
 public:
  SnapshotReader(std::string_view content, const std::string& source)
      : source_(source), pickle_(read_pickle(content, source)) {
    out_.source = source;
    out_.stacks.emplace_back();
  }

  MemorySnapshot run() {
    const auto segments = pickle_.find(pickle_.root(), "segments");
    const auto traces = pickle_.find(pickle_.root(), "device_traces");
    if (!segments || !traces)
      refuse("no snapshot of torch.cuda.memory: segments or device_traces is missing");
    choose_device(list(*segments, "segments"), list(*traces, "device_traces"));
    for (const Id id : list(*segments, "segments"))
      if (device_of(id) == out_.device) out_.segments.push_back(segment(id));
    std::ranges::sort(out_.segments, {}, &SnapshotSegment::address);
    for (std::size_t i = 1; i < out_.segments.size(); ++i)
      if (out_.segments[i - 1].address + out_.segments[i - 1].size.value() >
          out_.segments[i].address)
        refuse("two segments overlap");
    const auto all = list(*traces, "device_traces");
    if (static_cast<std::size_t>(out_.device) < all.size())
      for (const Id id : list(all[static_cast<std::size_t>(out_.device)], "device_traces"))
        event(id);
    if (out_.events.empty())
      refuse(
          "no history: call torch.cuda.memory._record_memory_history() before the steps that are "
          "to be compared");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::bad_input, fmt::format("{}: {}", source_, what));
  }

  std::span<const Id> list(Id id, const char* what) const {
    if (pickle_.kind(id) != Kind::list && pickle_.kind(id) != Kind::tuple)
      refuse(fmt::format("{} is no list", what));
    return pickle_.items(id);
  }

  std::int64_t natural(Id dict, const char* key, std::int64_t most) const {
    const auto found = pickle_.find(dict, key);
    if (!found || pickle_.kind(*found) != Kind::integer)
      refuse(fmt::format("{} is missing, but a number is needed", key));
    const std::int64_t value = pickle_.integer(*found);
    if (value < 0 || value > most) refuse(fmt::format("{} {}: cannot be", key, value));
    return value;
  }
  std::string_view text(Id dict, const char* key) const {
    const auto found = pickle_.find(dict, key);
    return found && pickle_.kind(*found) == Kind::text ? pickle_.text(*found) : std::string_view();
  }

  std::int64_t device_of(Id segment) const { return natural(segment, "device", 1 << 20); }

  // One process uses one device, and often a few bytes of another.
  void choose_device(std::span<const Id> segments, std::span<const Id> traces) {
    std::unordered_map<std::int64_t, std::int64_t> held;
    for (const Id id : segments) held[device_of(id)] += natural(id, "total_size", kMostSize);
    for (std::size_t i = 0; i < traces.size(); ++i)
      if (!list(traces[i], "device_traces").empty()) held.try_emplace(static_cast<std::int64_t>(i));
    out_.devices = std::max<std::size_t>(1, held.size());
    std::int64_t most = -1;
    for (const auto& [device, size] : held)
      if (size > most || (size == most && device < out_.device)) {
        out_.device = device;
        most = size;
      }
  }

  // Events of one line have lists of their own, of frames that they share; a list may stand for
  // several events too.
  std::uint32_t stack(Id of) {
    const auto frames = pickle_.find(of, "frames");
    if (!frames || pickle_.kind(*frames) != Kind::list) return 0;
    const auto [at, is_new] = lists_.try_emplace(*frames, 0);
    if (!is_new) return at->second;
    std::span<const Id> all = pickle_.items(*frames);
    if (all.empty()) return 0;
    all = all.first(std::min(all.size(), kMostFrames));
    const auto [same, is_first] = stacks_.try_emplace(std::u32string(all.begin(), all.end()), 0);
    if (is_first) same->second = read(all);
    return at->second = same->second;
  }

  std::uint32_t read(std::span<const Id> frames) {
    frames_.clear();
    for (const Id frame : frames) {
      const auto line = pickle_.find(frame, "line");
      frames_.push_back(
          {text(frame, "name"), text(frame, "filename"),
           line && pickle_.kind(*line) == Kind::integer ? pickle_.integer(*line) : 0});
    }
    out_.stacks.push_back(read_stack(frames_));
    return static_cast<std::uint32_t>(out_.stacks.size() - 1);
  }

  SnapshotSegment segment(Id id) {
    SnapshotSegment out;
    out.address = natural(id, "address", kMostAddress);
    out.size = Bytes(natural(id, "total_size", kMostSize));
    out.small = text(id, "segment_type") == "small";
    const auto expandable = pickle_.find(id, "is_expandable");
    out.expandable =
        expandable && pickle_.kind(*expandable) == Kind::truth && pickle_.integer(*expandable) != 0;
    const auto blocks = pickle_.find(id, "blocks");
    if (!blocks) refuse("a segment without blocks");
    std::int64_t at = out.address;
    for (const Id block : list(*blocks, "blocks")) {
      const Bytes size(natural(block, "size", kMostSize));
      const std::string_view state = text(block, "state");
      SnapshotBlock& read = out.blocks.emplace_back();
      read = {at, size, size, state == "active_allocated", state.starts_with("active"), 0};
      at += size.value();
      if (at > out.address + out.size.value()) refuse("the blocks of a segment are larger than it");
      if (!read.active) continue;
      // Since PyTorch 2.0; before, a block's history had it.
      if (pickle_.find(block, "requested_size"))
        read.requested = Bytes(natural(block, "requested_size", size.value()));
      read.stack = stack(block);
    }
    return out;
  }

  void event(Id id) {
    using Action = SnapshotEvent::Action;
    const std::string_view name = text(id, "action");
    Action action;
    if (name == "alloc")
      action = Action::alloc;
    else if (name == "free_requested")
      action = Action::free_requested;
    else if (name == "free_completed")
      action = Action::free_completed;
    else if (name == "segment_alloc" || name == "segment_map")
      action = Action::segment_alloc;
    else if (name == "segment_free" || name == "segment_unmap")
      action = Action::segment_free;
    else if (name == "oom" || name == "snapshot")
      return;
    else
      refuse(fmt::format("an event '{}', which is not known", printable(shortened(name))));
    out_.events.push_back({action, natural(id, "addr", kMostAddress),
                           Bytes(natural(id, "size", kMostSize)),
                           action == Action::alloc ? stack(id) : 0});
  }

  const std::string& source_;
  Pickle pickle_;
  std::unordered_map<Id, std::uint32_t> lists_;
  std::unordered_map<std::u32string, std::uint32_t> stacks_;
  std::vector<SnapshotFrame> frames_;
  MemorySnapshot out_;
};
}  // namespace

MemorySnapshot read_snapshot(std::string_view content, const std::string& source) {
  return SnapshotReader(content, source).run();
}

}  // namespace plimsoll::reports
