#include "tests/witness/covering.h"

#include <array>
#include <random>
#include <set>

#include "models/storages.h"

namespace plimsoll::witness {

namespace {

using models::Attention;
using models::Loss;
using models::Precision;
using models::RecomputeKind;

enum class Trains {
  all,
  lora,
  lora_dropout,
  lora_on_nf4,
  lora_on_nf4_dq,
  lora_on_int8,
  lora_on_int8_affine,
  upper_layers,
  norms,
  down,
  output,
  queries,
  biases,
  last_bias
};
struct Sharding {
  int zero;
  std::int64_t group;  // 0: all ranks
};

constexpr std::array kModels{
    "gpt2", "gpt2-dropout", "llama",  "qwen3", "granite",  "olmo2", "gemma",   "gpt_bigcode",
    "opt",  "gemma3_text",  "gemma2", "phi3",  "gpt_neox", "phi",   "mixtral", "qwen3_moe"};
constexpr std::array kRanks{1, 2, 3, 4, 8};
constexpr std::array kShardings{Sharding{0, 0}, Sharding{1, 0}, Sharding{2, 0}, Sharding{3, 0},
                                Sharding{1, 2}, Sharding{2, 2}, Sharding{3, 2}};
constexpr std::array kRecompute{
    RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full, RecomputeKind::every,
    RecomputeKind::sqrt, RecomputeKind::block,     RecomputeKind::nth,  RecomputeKind::recursive};
constexpr std::array kPrecisions{Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed,
                                 Precision::bf16};
constexpr std::array kTrains{Trains::all,
                             Trains::lora,
                             Trains::lora_dropout,
                             Trains::lora_on_nf4,
                             Trains::lora_on_nf4_dq,
                             Trains::lora_on_int8,
                             Trains::lora_on_int8_affine,
                             Trains::upper_layers,
                             Trains::norms,
                             Trains::down,
                             Trains::output,
                             Trains::queries,
                             Trains::biases,
                             Trains::last_bias};
constexpr std::array kAttention{Attention::flash, Attention::eager, Attention::math};
constexpr std::array kLoss{Loss::full, Loss::chunked, Loss::fused};
constexpr std::array kAccumulation{1, 3};
constexpr std::array kDeterministic{false, true};
constexpr std::array kOptimizers{models::Optimizer::adamw, models::Optimizer::adam8bit,
                                 models::Optimizer::lion8bit, models::Optimizer::galore};

struct Offloads {
  bool optimizer, activations;  // these of --recompute full
};
constexpr std::array kOffloads{Offloads{false, false}, Offloads{true, false}, Offloads{false, true},
                               Offloads{true, true}};
constexpr std::array kInBackward{false, true};  // the optimizer; of one micro-batch
// Gradients as they are; cast for the exchange where they are wider; and made wider for that.
enum class Exchanges { as_they_are, cast, cast_from_fp32 };
constexpr std::array kExchanges{Exchanges::as_they_are, Exchanges::cast, Exchanges::cast_from_fp32};

constexpr std::array<std::size_t, 14> kSizes{
    kModels.size(),       kRanks.size(),         kShardings.size(),  kRecompute.size(),
    kPrecisions.size(),   kTrains.size(),        kAttention.size(),  kLoss.size(),
    kAccumulation.size(), kDeterministic.size(), kOptimizers.size(), kOffloads.size(),
    kInBackward.size(),   kExchanges.size()};
using Choice = std::array<std::size_t, kSizes.size()>;

// The patterns of a family's modules.
struct Patterns {
  std::vector<std::string> lower_layers;
  const char *norms, *down, *output, *queries, *biases, *last;
};

bool mixture(const std::string& model) {
  return model == "mixtral" || model == "qwen3_moe";
}

Patterns patterns_of(const std::string& model) {
  if (mixture(model))
    return {{"model.embed_tokens.*", "model.layers.0.*"},
            "*norm*",
            model == "mixtral" ? "*w2*" : "*down_proj*",
            "*.1.self_attn.o_proj*",
            "*q_proj*",
            model == "mixtral" ? "*block_sparse_moe.gate.*" : "*mlp.gate.*",
            "*.experts.*"};
  if (model == "gpt_neox")
    return {{"gpt_neox.embed_in.*", "gpt_neox.layers.0.*"},
            "*norm*",
            "*dense_4h_to_h.weight",
            "*.1.attention.dense*",
            "*query_key_value*",
            "*.bias",
            "*dense_4h_to_h.bias"};
  if (model.starts_with("gpt"))
    return {{"transformer.w*", "transformer.h.0.*"},
            "*ln_*",
            "*mlp.c_proj.weight",
            "*attn.c_proj.weight",
            "*h.1.attn.c_attn.weight",
            "*.bias",
            "*mlp.c_proj.bias"};
  if (model == "opt")
    return {{"model.decoder.embed*", "model.decoder.layers.0.*"},
            "*norm*",
            "*fc2.weight",
            "*.1.self_attn.out_proj*",
            "*q_proj*",
            "*.bias",
            "*fc2.bias"};
  if (model == "phi")
    return {{"model.embed_tokens.*", "model.layers.0.*"},
            "*norm*",
            "*fc2.weight",
            "*.1.self_attn.dense*",
            "*q_proj*",
            "*.bias",
            "lm_head.bias"};
  Patterns like_llama{{"model.embed_tokens.*", "model.layers.0.*"},
                      "*norm*",
                      "*down_proj*",
                      "*.1.self_attn.o_proj*",
                      "*q_proj*",
                      "*v_proj*",
                      "*post_attention_layernorm*"};
  if (model == "phi3") like_llama.queries = like_llama.biases = "*qkv_proj*";
  return like_llama;
}

// nullptr: none.
const char* packed_base(Trains trains) {
  switch (trains) {
    case Trains::lora_on_nf4:
      return "nf4";
    case Trains::lora_on_nf4_dq:
      return "nf4-dq";
    case Trains::lora_on_int8:
      return "int8";
    case Trains::lora_on_int8_affine:
      return "int8-affine";
    default:
      return nullptr;
  }
}

void train(models::Strategy& s, Trains trains, const std::string& model) {
  const char* const packed = packed_base(trains);
  if (packed != nullptr) s.quantize = {.storage = models::find_packed_storage(packed)};
  if (trains == Trains::lora || trains == Trains::lora_dropout || packed != nullptr)
    s.lora = models::Lora{.rank = 3,
                          .alpha = 6,
                          .dropout = trains == Trains::lora_dropout ? 0.25 : 0,
                          .targets = {mixture(model) ? "attention" : "all-linear"}};
  const Patterns of = patterns_of(model);
  if (trains == Trains::upper_layers) s.freeze = of.lower_layers;
  if (trains == Trains::norms) s.train = {of.norms};
  if (trains == Trains::down) s.train = {of.down};
  if (trains == Trains::output) s.train = {of.output};
  if (trains == Trains::queries) s.train = {of.queries};
  if (trains == Trains::biases) s.train = {of.biases};
  if (trains == Trains::last_bias) s.train = {of.last};
}

Case case_of(const Choice& choice) {
  Case c;
  models::Strategy& s = c.strategy;
  c.model = kModels[choice[0]];
  s.stack = models::Stack::plimsoll;
  s.device = models::Device::cpu;
  s.gpus = kRanks[choice[1]];
  const Sharding sharding = kShardings[choice[2]];
  s.data.zero = sharding.zero;
  // A group of two where it divides the ranks.
  if (s.gpus % 2 == 0) s.data.shard_group = sharding.group;
  s.recompute = {kRecompute[choice[3]], 2};
  make_again_one_by_one(c.model, s.recompute);
  s.precision = kPrecisions[choice[4]];
  train(s, kTrains[choice[5]], c.model);
  s.attention = kAttention[choice[6]];
  s.loss = kLoss[choice[7]];
  c.batch = {.seq_len = 10, .micro_batch = 2, .grad_accum = kAccumulation[choice[8]]};
  c.deterministic = kDeterministic[choice[9]];
  s.optimizer = kOptimizers[choice[10]];
  s.offload.optimizer = kOffloads[choice[11]].optimizer;
  s.offload.activations =
      kOffloads[choice[11]].activations && s.recompute.kind == RecomputeKind::full;
  s.optimizer_in_backward =
      kInBackward[choice[12]] && c.batch.grad_accum == 1 && s.precision != Precision::fp16_mixed;
  project_where_whole(s, 2);
  const Exchanges exchanges = kExchanges[choice[13]];
  if (exchanges == Exchanges::cast_from_fp32) s.grad_dtype = DType::fp32;
  if (exchanges != Exchanges::as_they_are)
    s.data.reduce_dtype = s.precision == Precision::fp16_mixed ? DType::fp16 : DType::bf16;
  return c;
}

class Pairs {
 public:
  // How many pairs of the choice are new.
  std::size_t fresh(const Choice& choice) const {
    std::size_t n = 0;
    each(choice, [&](std::uint64_t pair) { n += seen_.contains(pair) ? 0u : 1u; });
    return n;
  }
  void add(const Choice& choice) {
    each(choice, [&](std::uint64_t pair) { seen_.insert(pair); });
  }
  bool complete() const {
    std::size_t all = 0;
    for (std::size_t i = 0; i < kSizes.size(); ++i)
      for (std::size_t j = i + 1; j < kSizes.size(); ++j) all += kSizes[i] * kSizes[j];
    return seen_.size() == all;
  }

 private:
  template <class Visit>
  static void each(const Choice& choice, Visit visit) {
    for (std::size_t i = 0; i < choice.size(); ++i)
      for (std::size_t j = i + 1; j < choice.size(); ++j)
        visit(((i * 32 + choice[i]) * 32 + j) * 32 + choice[j]);
  }
  std::set<std::uint64_t> seen_;
};

}  // namespace

std::vector<Case> covering(std::size_t least, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  std::set<Choice> drawn;
  Pairs pairs;
  while (cases.size() < least || !pairs.complete()) {
    // Of a few candidates the one with most new pairs.
    Choice best{};
    std::size_t most = 0;
    for (int candidate = 0; candidate < 8; ++candidate) {
      Choice choice{};
      for (std::size_t i = 0; i < choice.size(); ++i) choice[i] = random() % kSizes[i];
      if (drawn.contains(choice)) continue;
      const std::size_t fresh = pairs.fresh(choice) + 1;
      if (fresh > most) {
        most = fresh;
        best = choice;
      }
    }
    if (most == 0) continue;
    drawn.insert(best);
    pairs.add(best);
    cases.push_back(case_of(best));
  }
  return cases;
}

}  // namespace plimsoll::witness
