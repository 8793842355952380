// Files of a run, and of many questions at once.
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <vector>

#include "models/safetensors_reader.h"
#include "runtime/io/bitsandbytes_checkpoint.h"
#include "runtime/io/checkpoint.h"
#include "runtime/io/tokens.h"
#include "runtime/shard/packed_bytes.h"
#include "tests/fuzz/given.h"
#include "tests/fuzz/targets.h"
#include "tools/cli/query_csv.h"
#include "tools/cli/query_json.h"
#include "tools/fleet/fleet_file.h"
#include "tools/published/rows.h"

namespace plimsoll::tests {

namespace {

// What was read is written as what reads the same.
void training_checkpoint(std::string_view input) {
  refused_or_read([&] {
    const auto read = runtime::io::parse_checkpoint(std::string(input), "checkpoint.json");
    const std::string written = runtime::io::checkpoint_json(read);
    const auto again = runtime::io::parse_checkpoint(written, "checkpoint.json");
    if (runtime::io::checkpoint_json(again) != written || again.parameters != read.parameters)
      throw Broken("a checkpoint is not read as it was written");
  });
}

void token_file(std::string_view input) {
  constexpr std::int64_t kVocabulary = 50257;
  const MemoryFile file(input);
  const auto all_of = [](const runtime::io::TokenSource& tokens) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.tokens()));
    tokens.read(0, ids);
    const auto inside = [](std::int32_t id) { return id >= 0 && id < kVocabulary; };
    if (!std::all_of(ids.begin(), ids.end(), inside)) throw Broken("an id that no model has");
  };
  refused_or_read([&] { all_of(*runtime::io::id_file_tokens(file.path(), kVocabulary)); });
  refused_or_read([&] { all_of(*runtime::io::text_tokens(file.path(), kVocabulary)); });
}

void safetensors_index(std::string_view input) {
  refused_or_read([&] {
    const auto index = models::parse_safetensors_index("index.json", std::string(input));
    models::names_of_index("index.json", index);
    for (const std::string& name : index.files)
      if (std::filesystem::path(name).has_parent_path())
        throw Broken("a file outside of its folder");
  });
}

// A weight that bitsandbytes has packed: what is read of it has the size that our runtime gives it.
void packed_weight(std::string_view input) {
  const MemoryFile file(input);
  refused_or_read([&] {
    const models::Checkpoint checkpoint = models::read_safetensors_header(file.path());
    for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i)
      refused_or_read([&] {
        runtime::io::InputFiles files;
        std::vector<std::size_t> companions;
        const auto packing =
            runtime::io::find_packing(checkpoint, i, models::Shape{4, 64}, files, companions);
        if (!packing) return;
        const auto places = runtime::shard::packed_places(*packing->storage, {4, 64});
        const auto bytes =
            runtime::shard::packed_bytes(runtime::io::read_packing(*packing, files).view(), places);
        (void)runtime::shard::unpacked(bytes, DType::bf16, places);
      });
  });
}

void published(std::string_view input) {
  refused_or_read([&] {
    for (const tools::PublishedRow& row : tools::read_published(input, "published").rows)
      if (row.command().empty()) throw Broken("a row without its question");
  });
}

void fleet(std::string_view input) {
  refused_or_read([&] {
    const tools::FleetFile file = tools::read_fleet(input, "fleet.json");
    tools::check_fleet(file, "fleet.json");
    if (file.of_pool.size() != file.fleet.pools.size()) throw Broken("a pool without its options");
  });
}

// A table of questions: the first line names the options.
void query_table(std::string_view input) {
  const std::size_t end = std::min(input.find('\n'), input.size());
  refused_or_read([&] {
    const auto keys = tools::csv_keys(input.substr(0, end));
    if (!keys || end == input.size()) return;
    std::string id;
    tools::query_from(tools::csv_query(*keys, input.substr(end + 1)), id);
  });
}

constexpr std::array kTargets{FuzzTarget{"training_checkpoint", training_checkpoint},
                              FuzzTarget{"token_file", token_file},
                              FuzzTarget{"packed_weight", packed_weight},
                              FuzzTarget{"safetensors_index", safetensors_index},
                              FuzzTarget{"published", published},
                              FuzzTarget{"fleet", fleet},
                              FuzzTarget{"query_table", query_table}};

}  // namespace

std::span<const FuzzTarget> file_targets() {
  return kTargets;
}

}  // namespace plimsoll::tests
