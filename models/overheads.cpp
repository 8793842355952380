#include "models/overheads.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "models/config_reader.h"
#include "models/specs/documents.h"

namespace plimsoll::models {

namespace {
using Version = std::pair<int, int>;

// "2.11.0+cu130" -> {2, 11}; nothing for what does not start so.
std::optional<Version> version_of(std::string_view text) {
  Version version{0, 0};
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.second);
  if (minor.ec != std::errc()) return std::nullopt;
  return version;
}

// "<=2.11" or ">=2.12"; "": every version.
bool holds(std::string_view condition, Version version) {
  if (condition.empty()) return true;
  const std::optional<Version> bound = version_of(condition.substr(2));
  check(bound.has_value(), ErrorKind::internal,
        [&] { return "overheads.json: torch: " + std::string(condition); });
  return condition.starts_with("<=") ? version <= *bound : version >= *bound;
}

// How closely an entry fits: 0 not at all; the family weighs more than the stack.
int closeness(const Config& entry, std::string_view stack, const Gpu& gpu) {
  const std::string family = entry.text("family", "any");
  const std::string of = entry.text("stack", "any");
  const int family_rank = family == gpu.family   ? 3
                          : family == gpu.vendor ? 2
                          : family == "any"      ? 1
                                                 : 0;
  const int stack_rank = of == stack ? 2 : of == "any" ? 1 : 0;
  return family_rank == 0 || stack_rank == 0 ? 0 : 2 * family_rank + stack_rank;
}

Overhead parse_overhead(const Config& entry, const Config& sources) {
  Overhead overhead;
  overhead.name = entry.text("name", "");
  if (entry.has("low"))
    overhead.range = Overhead::Range{entry.natural("low", 0), entry.natural("typical", 0),
                                     entry.natural("high", 0)};
  const std::string where = entry.text("where", "device");
  overhead.where = where == "allocator" ? Overhead::Where::allocator
                   : where == "count"   ? Overhead::Where::count
                                        : Overhead::Where::device;
  overhead.per = entry.text("per", "");
  overhead.basis = entry.text("basis", "assumed");
  const std::string source = entry.text("src", "");
  overhead.source = sources.text(std::string_view(source), source);
  overhead.formula = entry.text("formula", "");
  overhead.note = entry.text("note", "");
  return overhead;
}

std::vector<Overhead> read_overheads(std::string_view stack, const Gpu& gpu, Version version) {
  const Config document = Config::parse(specs::document("overheads"), "overheads.json");
  const Config sources = document.section("sources").value();
  const std::vector<Config> entries = document.sections("entries");
  std::map<std::string, std::pair<int, const Config*>> closest;
  for (const Config& entry : entries) {
    const int rank = closeness(entry, stack, gpu);
    if (rank == 0 || !holds(entry.text("torch", ""), version)) continue;
    auto& [best, config] = closest[entry.text("name", "")];
    if (rank <= best) continue;
    best = rank;
    config = &entry;
  }
  std::vector<Overhead> out;
  for (const auto& [name, entry] : closest) out.push_back(parse_overhead(*entry.second, sources));
  return out;
}
}  // namespace

// The document is parsed once for each kind of GPU that a thread asks about: a batch of questions
// asks thousands of times.
std::vector<Overhead> overheads_of(std::string_view stack, const Gpu& gpu,
                                   std::string_view torch_version) {
  const std::optional<Version> version = version_of(torch_version);
  check(version.has_value(), ErrorKind::bad_input, [&] {
    return fmt::format("torch version '{}': a version like 2.11 is needed", torch_version);
  });
  using Question = std::tuple<std::string, std::string, std::string, Version>;
  thread_local std::map<Question, std::vector<Overhead>> known;
  const auto [entry, is_new] =
      known.try_emplace(Question{std::string(stack), gpu.family, gpu.vendor, *version});
  if (is_new) entry->second = read_overheads(stack, gpu, *version);
  return entry->second;
}

const Overhead* find_overhead(const std::vector<Overhead>& overheads, std::string_view name) {
  for (const Overhead& overhead : overheads)
    if (overhead.name == name) return &overhead;
  return nullptr;
}

}  // namespace plimsoll::models
