// Every tensor's name, shape and kind against tables that tools/oracle/parameter_tables.py took
// from Transformers on the meta device.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/lora.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/table/table.h"

using namespace plimsoll;
using models::ModelSpec;
using nlohmann::json;

namespace {
struct Tensor {
  std::vector<std::int64_t> shape;
  bool tied = false, no_gradient = false, conv1d = false, linear = false, embedding = false;
  bool operator==(const Tensor&) const = default;
};
using Tensors = std::map<std::string, Tensor>;

json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  REQUIRE_MESSAGE(in.good(), path.string());
  return json::parse(in);
}

std::filesystem::path golden() {
  return std::filesystem::path(PLIMSOLL_SOURCE_ROOT) / "tests" / "golden";
}

// One entry for each tensor that the ranges stand for.
void add(Tensors& out, const std::string& name, const Tensor& tensor,
         const std::vector<models::IndexRange>& ranges, std::vector<std::int64_t>& indices) {
  if (indices.size() == ranges.size()) {
    const std::string full = models::expand(name, indices);
    CHECK_MESSAGE(out.emplace(full, tensor).second, "twice in the table: ", full);
    return;
  }
  const models::IndexRange& range = ranges[indices.size()];
  for (std::int64_t i = 0; i < range.count; ++i) {
    indices.push_back(range.first + i * range.step);
    add(out, name, tensor, ranges, indices);
    indices.pop_back();
  }
}

Tensors golden_tensors(const json& rows) {
  Tensors out;
  for (const json& row : rows) {
    Tensor tensor{.shape = row[1]};
    for (const std::string flag : row[3]) {
      tensor.tied |= flag == "tied";
      tensor.no_gradient |= flag == "fixed";
      tensor.conv1d |= flag == "conv1d";
      tensor.linear |= flag == "linear";
      tensor.embedding |= flag == "embedding";
    }
    std::vector<models::IndexRange> ranges;
    for (const json& range : row[2]) ranges.push_back({range[0], range[1], range[2]});
    std::vector<std::int64_t> indices;
    add(out, row[0], tensor, ranges, indices);
  }
  return out;
}

bool is_weight(const models::ParameterRow& row) {
  return row.name.ends_with(".weight");
}

Tensors tensors_of(const ModelSpec& model) {
  using models::ModuleKind;
  Tensors out;
  for (const models::ParameterRow& row : model.parameters) {
    const auto& axes = row.shape.axes;
    const bool linear = row.module == ModuleKind::linear || row.module == ModuleKind::expert;
    const Tensor tensor{.shape = {axes.begin(), axes.begin() + row.shape.rank},
                        .tied = row.tied,
                        .no_gradient = row.no_gradient,
                        .conv1d = row.transposed,
                        .linear = linear && is_weight(row),
                        .embedding = row.module == ModuleKind::embedding && is_weight(row)};
    std::vector<std::int64_t> indices;
    add(out, row.name, tensor, row.ranges, indices);
  }
  return out;
}

// Classifiers are linear modules to PEFT unless it is told the task; ours never adapt the head.
bool is_classifier(const std::string& name) {
  for (const char* module : {"score.", "classifier.", "qa_outputs."})
    if (name.starts_with(module)) return true;
  return false;
}

void compare(const Tensors& expected, const Tensors& found) {
  for (const auto& [name, tensor] : expected) {
    const auto it = found.find(name);
    if (it == found.end()) {
      FAIL_CHECK("missing: " << name);
      continue;
    }
    CAPTURE(name);
    CHECK(it->second.shape == tensor.shape);
    CHECK(it->second.tied == tensor.tied);
    CHECK(it->second.no_gradient == tensor.no_gradient);
    CHECK(it->second.conv1d == tensor.conv1d);
    CHECK(it->second.embedding == tensor.embedding);
    if (!is_classifier(name)) CHECK(it->second.linear == tensor.linear);
  }
  for (const auto& [name, tensor] : found)
    CHECK_MESSAGE(expected.contains(name), "not in Transformers: ", name);
}
}  // namespace

TEST_CASE("the catalog's tensors are those of Transformers, name by name") {
  std::set<std::string> not_in_transformers;
  for (const std::string_view name : models::catalog_names()) {
    CAPTURE(name);
    const ModelSpec model = models::catalog_model(name);
    const auto path = golden() / "parameters" / (std::string(name) + ".json");
    if (!std::filesystem::exists(path)) {
      not_in_transformers.insert(model.model_type);
      continue;
    }
    const json table = read_json(path);
    CHECK(model.parameter_count() == Count(table["parameters"].get<std::int64_t>()));
    compare(golden_tensors(table["rows"]), tensors_of(model));
  }
  CHECK(not_in_transformers == std::set<std::string>{"internlm2"});
}

TEST_CASE("small configs of every family with every option have Transformers' tensors") {
  const json small = read_json(golden() / "small_parameter_tables.json");
  CHECK(small.size() > 140);
  for (const auto& [name, table] : small.items()) {
    CAPTURE(name);
    const ModelSpec model = models::read_model(table["config"].dump(), name, name);
    CHECK(model.parameter_count() == Count(table["parameters"].get<std::int64_t>()));
    compare(golden_tensors(table["rows"]), tensors_of(model));
  }
}

TEST_CASE("what a config leaves out is what Transformers fills in, its sizes aside") {
  const json defaults = read_json(golden() / "default_fields.json");
  CHECK(defaults.size() == 33);
  for (const json& entry : defaults) {
    const std::string config = entry["config"].dump();
    CAPTURE(config);
    const ModelSpec model = models::read_model(config, "sizes alone", "config.json");
    CHECK(model.parameter_count() == Count(entry["parameters"].get<std::int64_t>()));
    // RoBERTa's table has two rows before the first position's (modeling_roberta.py, padding_idx).
    const std::int64_t before = model.model_type == "roberta" ? 2 : 0;
    if (!entry["positions"].is_null())
      CHECK(model.max_positions == entry["positions"].get<std::int64_t>() - before);
    if (!model.numerics) continue;
    if (!entry["norm_eps"].is_null()) CHECK(model.numerics->norm_eps == entry["norm_eps"]);
    if (!entry["theta"].is_null() && model.numerics->rotary)
      CHECK(model.numerics->rotary->theta == entry["theta"]);
    if (!entry["deviation"].is_null())
      CHECK(model.numerics->initialization.deviation == entry["deviation"]);
  }
}

// No config without its sizes is planned; what stands in a family's place is its class's own.
TEST_CASE("a family's sizes are those of its class's config") {
  const json classes = read_json(golden() / "class_defaults.json");
  CHECK(classes.size() == 33);
  for (const json& entry : classes) {
    const std::string type = entry["config"]["model_type"],
                      name = entry["config"]["architectures"][0];
    CAPTURE(type);
    const models::families::Family family = models::families::find_family(type)->make();
    const auto own =
        std::ranges::find(family.architectures, name, &models::families::Architecture::name);
    REQUIRE(own != family.architectures.end());
    ModelSpec model;
    model.model_type = type;
    model.architecture = name;
    family.build(models::Config::parse("{}", "config.json"), own->head, model);
    CHECK(model.parameter_count() == Count(entry["parameters"].get<std::int64_t>()));
    if (model.decoder) CHECK(model.decoder->heads == entry["heads"]);
    std::int64_t most = 0;  // experts of a layer that a token passes through, the routed ones
    for (const models::ParameterRow& row : model.parameters) most = std::max(most, row.active);
    if (most > 0 && !entry["experts_per_token"].is_null())
      CHECK(most == entry["experts_per_token"]);
  }
}

TEST_CASE("published parameter counts are met exactly") {
  const json published = read_json(golden() / "published_counts.json");
  CHECK(published.size() == 81);
  for (const json& model : published) {
    const std::string id = model["id"];
    CAPTURE(id);
    CHECK(models::read_model(model["config"].dump(), id, id).parameter_count() ==
          Count(model["parameters"].get<std::int64_t>()));
  }
}

TEST_CASE("indices are folded into progressions of one step each") {
  using models::IndexRange;
  const auto folded = [](std::vector<std::int64_t> indices) {
    std::vector<std::array<std::int64_t, 3>> out;
    for (const IndexRange& range : models::families::ranges_of(indices))
      out.push_back({range.first, range.count, range.step});
    return out;
  };
  using Ranges = std::vector<std::array<std::int64_t, 3>>;
  CHECK(folded({}) == Ranges{});
  CHECK(folded({5}) == Ranges{{5, 1, 1}});
  CHECK(folded({0, 1, 2, 3}) == Ranges{{0, 4, 1}});
  CHECK(folded({1, 4, 7, 10}) == Ranges{{1, 4, 3}});
  CHECK(folded({0, 2, 4, 5, 6}) == Ranges{{0, 3, 2}, {5, 2, 1}});
}

TEST_CASE("active parameters are those that one token passes through") {
  // Embedding, attention, norms, routers, shared and chosen experts, head; each checked by hand:
  // Mixtral 8x7B: 46 702 792 704 - 32 * 6 * 3 * 4096 * 14336.
  CHECK(models::catalog_model("mixtral-8x7b").active_parameter_count() == Count(12'879'925'248));
  // Qwen3 30B-A3B: 30 532 122 624 - 48 * 120 * 3 * 2048 * 768.
  CHECK(models::catalog_model("qwen3-30b-a3b").active_parameter_count() == Count(3'353'032'704));
  // DeepSeek-V2: 235 741 434 880 - 59 * 154 * 3 * 5120 * 1536.
  CHECK(models::catalog_model("deepseek-v2").active_parameter_count() == Count(21'375'800'320));
  // DeepSeek-V3: 671 026 419 200 - 58 * 248 * 3 * 7168 * 2048.
  CHECK(models::catalog_model("deepseek-v3").active_parameter_count() == Count(37'552'297'472));
  // gpt-oss-20b: 20 914 757 184 - 24 * 28 * (2880 * 5760 + 5760 + 2880 * 2880 + 2880).
  CHECK(models::catalog_model("gpt-oss-20b").active_parameter_count() == Count(4'187'440'704));
  const ModelSpec dense = models::catalog_model("llama-3.1-8b");
  CHECK(dense.active_parameter_count() == dense.parameter_count());
}
