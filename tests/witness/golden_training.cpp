#include "tests/witness/golden_training.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "models/model_reader.h"
#include "runtime/io/batches.h"
#include "runtime/io/weight_source.h"

namespace plimsoll::witness {

namespace {

using runtime::io::WeightSource;
using runtime::test::GoldenModel;

// As the adapter's adapter_config.json.
std::optional<models::Lora> lora_of(const char* adapter) {
  if (adapter == nullptr) return std::nullopt;
  if (std::string(adapter) == "gpt2-lora")
    return models::Lora{.rank = 3, .alpha = 8, .targets = {"c_attn", "c_fc", "mlp.c_proj"}};
  return models::Lora{.rank = 4, .alpha = 6, .targets = {"all-linear"}};
}

// All golden sequences, one after another.
struct Sequences {
  std::vector<std::int32_t> ids, targets;
};

Sequences sequences_of(const GoldenModel& golden) {
  Sequences all;
  for (int step = 0; step < runtime::test::kGoldenSteps; ++step) {
    std::ranges::copy(golden.ids(step), std::back_inserter(all.ids));
    std::ranges::copy(golden.targets(step), std::back_inserter(all.targets));
  }
  return all;
}

}  // namespace

Golden::Golden(const char* name, const char* adapter)
    : model(models::model_from_path(GoldenModel(name).config())),
      results(adapter != nullptr ? adapter : name),
      lora(lora_of(adapter)),
      folder_(GoldenModel(name).folder()) {}

Training Golden::base(const models::Strategy& strategy, Split split) const {
  Training training{.model = model, .strategy = strategy};
  training.strategy.lora = lora;
  training.batch = {.seq_len = results.length(),
                    .micro_batch = split.micro_batch,
                    .grad_accum = split.grad_accum};
  std::shared_ptr<WeightSource> weights = runtime::io::stored_weights(model, folder_), adapter;
  if (lora)
    adapter = runtime::io::stored_adapter(models::lora_modules(model, *lora), results.folder());
  training.weights = [weights, adapter](const runtime::ModelParameter& parameter,
                                        std::int64_t first, std::span<float> to) {
    (parameter.adapter ? adapter : weights)
        ->read(parameter.name, first,
               {to.data(), DType::fp32, {static_cast<std::int64_t>(to.size())}});
  };
  return training;
}

Training Golden::training(const models::Strategy& strategy, Split split) const {
  Training training = base(strategy, split);
  training.learning_rate = static_cast<float>(runtime::test::kGoldenLearningRate);
  training.optimizer.beta1 = static_cast<float>(runtime::test::kGoldenBeta1);
  training.optimizer.beta2 = static_cast<float>(runtime::test::kGoldenBeta2);
  training.optimizer.eps = static_cast<float>(runtime::test::kGoldenEps);
  training.optimizer.weight_decay = static_cast<float>(runtime::test::kGoldenWeightDecay);
  training.optimizer.max_norm = 0;
  const auto all = std::make_shared<const Sequences>(sequences_of(results));
  training.tokens = [all, ranks = strategy.gpus, micros = split.grad_accum](
                        std::int64_t step, std::int64_t micro, std::int64_t rank,
                        std::span<std::int32_t> ids, std::span<std::int32_t> targets) {
    const std::size_t first =
        static_cast<std::size_t>((step * micros + micro) * ranks + rank) * ids.size();
    check(first + ids.size() <= all->ids.size(), ErrorKind::internal, "golden sequences suffice");
    std::ranges::copy(std::span(all->ids).subspan(first, ids.size()), ids.begin());
    std::ranges::copy(std::span(all->targets).subspan(first, ids.size()), targets.begin());
  };
  return training;
}

Training Golden::training_on_text(const models::Strategy& strategy, Split split) const {
  Training training = base(strategy, split);
  training.optimizer.max_norm = 0;  // torch.optim.AdamW's defaults besides
  training.tokens = shipped_text_tokens(training);
  return training;
}

RankTokens shipped_text_tokens(const Training& training) {
  const std::shared_ptr<runtime::io::TokenSource> text =
      runtime::io::shipped_tokens(training.model.decoder->vocab);
  const auto batches = std::make_shared<runtime::io::Batches>(
      *text, runtime::io::BatchShape{.ranks = training.strategy.gpus,
                                     .micro_batches = training.batch.grad_accum,
                                     .sequences = training.batch.micro_batch,
                                     .length = training.batch.seq_len});
  return [text, batches](std::int64_t step, std::int64_t micro, std::int64_t rank,
                         std::span<std::int32_t> ids, std::span<std::int32_t> targets) {
    batches->fill(step, micro, rank, ids, targets);
  };
}

}  // namespace plimsoll::witness
