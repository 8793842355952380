// What is read of each config, as text: golden/model_facts.txt. Parameter tables and defaults are
// held against Transformers' own elsewhere; here stands every other fact of the same configs, to be
// read. PLIMSOLL_WRITE=1 writes the file anew: read what changes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string_view>

#include "models/model_reader.h"
#include "models/run_names.h"

using namespace plimsoll;
using models::ModelSpec;
using nlohmann::json;

namespace {

std::filesystem::path golden() {
  return std::filesystem::path(PLIMSOLL_SOURCE_ROOT) / "tests" / "golden";
}

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The enumerators of each kind, in their order.
using Words = std::span<const std::string_view>;
constexpr std::string_view kNorms[] = {
    "layer_norm",         "rms_norm",         "rms_norm_fp32",
    "rms_norm_one_plus",  "rms_norm_inline",  "rms_norm_fused",
    "rms_norm_composite", "rms_norm_product", "rms_norm_product_low"};
constexpr std::string_view kPositions[] = {"learned", "counted", "rope", "alibi"};
constexpr std::string_view kEmbeddings[] = {"none", "module", "model"};
constexpr std::string_view kMlps[] = {"gelu_tanh", "gelu", "relu", "swiglu"};
constexpr std::string_view kModules[] = {"linear",
                                         "conv1d",
                                         "rms_norm",
                                         "rms_norm_fp32",
                                         "rms_norm_one_plus",
                                         "rms_norm_inline",
                                         "rms_norm_fused",
                                         "rms_norm_composite",
                                         "rms_norm_product",
                                         "rms_norm_product_low",
                                         "layer_norm",
                                         "experts",
                                         "sinks"};
constexpr std::string_view kOps[] = {"norm",
                                     "linear",
                                     "split",
                                     "slice",
                                     "concatenate",
                                     "heads",
                                     "reshape",
                                     "expand",
                                     "rotary",
                                     "attention",
                                     "activation",
                                     "multiply",
                                     "scale",
                                     "add",
                                     "dropout",
                                     "experts",
                                     "route",
                                     "visitors",
                                     "gather",
                                     "weigh",
                                     "add_rows",
                                     "gather_sequence",
                                     "scatter_sequence",
                                     "leave"};
constexpr std::string_view kActivations[] = {"silu", "gelu",        "gelu_tanh",
                                             "relu", "gelu_python", "gelu_function"};
constexpr std::string_view kSoftmaxes[] = {"fp32", "as_computed", "uncast"};
Words words(models::NormKind) {
  return kNorms;
}
Words words(models::PositionKind) {
  return kPositions;
}
Words words(models::EmbeddingScale) {
  return kEmbeddings;
}
Words words(models::MlpKind) {
  return kMlps;
}
Words words(models::ModuleClass) {
  return kModules;
}
Words words(models::OpKind) {
  return kOps;
}
Words words(models::Activation) {
  return kActivations;
}
Words words(models::EagerSoftmax) {
  return kSoftmaxes;
}

// What is not 0 or false, so that a line holds what there is to say.
class Facts {
 public:
  template <class Value>
  Facts& operator()(const char* name, Value value) {
    if (value != Value()) text_ += fmt::format(" {}={}", name, value);
    return *this;
  }
  template <class Enum>
  Facts& kind(const char* name, Enum value) {
    const auto place = static_cast<std::size_t>(value);
    REQUIRE(place < words(value).size());
    text_ += fmt::format(" {}={}", name, words(value)[place]);
    return *this;
  }
  Facts& always(const char* name, int value) {
    text_ += fmt::format(" {}={}", name, value);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string decoder_line(const models::Decoder& d) {
  Facts facts;
  facts("hidden", d.hidden)("layers", d.layers)("heads", d.heads)("kv_heads", d.kv_heads);
  facts("head_dim", d.head_dim)("rotary_dim", d.rotary_dim)("ffn", d.ffn)("vocab", d.vocab);
  facts("window", d.window)("full_layers", d.full_layers)("local_rotary", d.local_rotary);
  facts("embedding_norm", d.embedding_norm)("token_types", d.token_types);
  facts("bidirectional", d.bidirectional)("head_transform", d.head_transform);
  facts("embedding_width", d.embedding_width)("masked_loss", d.masked_loss);
  facts("labels", d.labels)("pooled", d.pooled)("of_classifier", d.classifier_dropout);
  facts.kind("embedding_scale", d.embedding_scale)("scaled_logits", d.scaled_logits);
  facts("soft_capped_logits", d.soft_capped_logits).kind("norm", d.norm).kind("at", d.position);
  facts.kind("mlp", d.mlp)("fused_qkv", d.fused_qkv)("qkv_bias", d.qkv_bias);
  facts("out_bias", d.out_bias)("mlp_bias", d.mlp_bias)("qk_norm", d.qk_norm);
  facts("half_rotary", d.half_rotary)("masks_alone", d.masks_without_positions);
  facts("fp32_rotary", d.fp32_rotary)("tied_head", d.tied_head)("eager", d.eager_attention);
  facts("masks_first", d.masks_first)("causal_table", d.causal_table)("python_gelu", d.python_gelu);
  facts("dropout", d.embedding_dropout)("of_attention", d.attention_dropout);
  facts("of_residual", d.residual_dropout);
  return "  decoder" + facts.text() + "\n";
}

std::string numerics_line(const models::Numerics& n) {
  Facts facts;
  facts("eps", n.norm_eps)("scale", n.attention_scale)("embedding", n.embedding_scale);
  facts("residual", n.residual_scale)("logits", n.logits_scale);
  if (n.rotary)
    facts("theta", n.rotary->theta)("factor", n.rotary->factor)("low", n.rotary->low_factor)(
        "high", n.rotary->high_factor)("original", n.rotary->original_positions);
  if (n.local_rotary) facts("local_theta", n.local_rotary->theta);
  facts("attention_cap", n.attention_cap)("logits_cap", n.logits_cap);
  const models::Initialization& i = n.initialization;
  facts("deviation", i.deviation)("residual_divisor", i.residual_divisor);
  facts("norm_weight", i.norm_weight);
  if (i.padding_row) facts("padding_row", *i.padding_row + 1);
  return "  numerics" + facts.text() + "\n";
}

template <class Numbers>
std::string listed(const Numbers& numbers) {
  std::string out;
  for (const auto number : numbers) out += (out.empty() ? "" : ",") + std::to_string(number);
  return out;
}

std::string block_text(const models::Block& block) {
  std::string out;
  for (const models::Module& m : block.modules) {
    Facts facts;
    facts.kind("kind", m.kind)("in", m.in)("out", m.out)("bias", m.bias)("experts", m.experts);
    facts("active", m.active).always("place", m.place);
    out += fmt::format("    {}{}\n", m.name, facts.text());
  }
  for (const models::Node& n : block.nodes) {
    Facts facts;
    facts.kind("op", n.kind)("module", n.module + 1);
    const bool has_activation =
        n.kind == models::OpKind::activation || n.kind == models::OpKind::experts;
    if (has_activation || n.activation != models::Activation{})
      facts.kind("activation", n.activation);
    if (n.kind == models::OpKind::attention || n.softmax != models::EagerSoftmax{})
      facts.kind("softmax", n.softmax);
    facts("sliding", n.sliding)("soft_cap", n.soft_cap);
    facts("alibi", n.alibi)("probability", n.probability)("by_head", n.by_head);
    facts("casts_back", n.casts_back)("pairs", n.pairs)("joins", n.joins);
    facts("halves", n.halves)("clamps", n.clamps);
    facts("of_view", n.of_view)("normalizes", n.normalizes);
    facts("wide_scores", n.wide_scores)("expert", n.expert + 1);
    out += fmt::format("    ({}) -> ({}) {}{} frees ({})\n", listed(n.in), listed(n.out), n.name,
                       facts.text(), listed(n.releases));
  }
  out += fmt::format("    widths {} returned ({})\n", listed(block.widths), listed(block.returned));
  return out;
}

std::string rows_text(const ModelSpec& model) {
  std::string out;
  for (const models::ParameterRow& row : model.parameters) {
    Facts facts;
    facts("active", row.active)("fused", row.fused_experts)("bare", row.bare);
    if (!row.stacked.empty()) facts("stacked", std::string(row.stacked));
    if (row.dtype) facts("dtype", std::string(name_of(*row.dtype)));
    if (!facts.text().empty()) out += fmt::format("  row {}{}\n", row.name, facts.text());
  }
  return out;
}

class Page {
 public:
  void add(const std::string& name, const ModelSpec& model) {
    text_ += fmt::format("{}: {} {} positions={} active={}\n", name, model.model_type,
                         model.architecture, model.max_positions,
                         model.active_parameter_count().value());
    if (model.checkpoint_dtype)
      text_ += fmt::format("  dtype {}\n", name_of(*model.checkpoint_dtype));
    if (model.decoder) text_ += decoder_line(*model.decoder);
    if (!model.no_decoder.empty()) text_ += "  no decoder: " + model.no_decoder + "\n";
    if (model.numerics) text_ += numerics_line(*model.numerics);
    if (!model.no_numerics.empty()) text_ += "  no numerics: " + model.no_numerics + "\n";
    for (const std::string& note : model.notes) text_ += "  note: " + note + "\n";
    text_ += rows_text(model);
    for (const auto& block : model.blocks) {
      const std::string text = block_text(*block);
      const auto [known, fresh] = blocks_.emplace(text, blocks_.size());
      text_ += fmt::format("  block {}\n", known->second) + (fresh ? text : "");
    }
  }
  // Of older releases, and in other programs' code.
  void add_others(const ModelSpec& model) {
    for (const models::OtherForward& forward : model.other_forwards) {
      text_ += fmt::format("  other {}{}\n", models::name_of(forward.code),
                           forward.before ? " before " + text_of(*forward.before) : "");
      for (const auto& block : forward.blocks) {
        const std::string text = block_text(*block);
        const auto [known, fresh] = others_.emplace(text, others_.size());
        text_ += fmt::format("  other block {}\n", known->second) + (fresh ? text : "");
      }
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::map<std::string, std::size_t> blocks_, others_;
};

}  // namespace

TEST_CASE("every fact of every family's small configs is the one that stands to be read") {
  Page page;
  const json small = json::parse(content(golden() / "small_parameter_tables.json"));
  for (const auto& [name, table] : small.items()) {
    const ModelSpec model = models::read_model(table["config"].dump(), name, name);
    page.add(name, model);
    page.add_others(model);
  }
  const json defaults = json::parse(content(golden() / "default_fields.json"));
  for (const json& entry : defaults) {
    const std::string name = "default " + entry["config"]["model_type"].get<std::string>();
    page.add(name, models::read_model(entry["config"].dump(), name, name));
  }
  const std::filesystem::path path = golden() / "model_facts.txt";
  if (std::getenv("PLIMSOLL_WRITE") != nullptr) std::ofstream(path) << page.text();
  std::istringstream expected(content(path)), found(page.text());
  std::string a, b, model;
  while (std::getline(expected, a) && std::getline(found, b)) {
    if (!a.starts_with(' ')) model = a;
    CAPTURE(model);
    REQUIRE(b == a);
  }
  CHECK(page.text().size() == content(path).size());
}
