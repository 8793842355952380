#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, ffn;
  bool bias;
};

void add_block(Table& table, const Dimensions& d) {
  table.norm("norm_1", d.hidden, d.bias);
  table.linear("attn.Wqkv", d.hidden, checked_multiply(3, d.hidden), d.bias);
  table.linear("attn.out_proj", d.hidden, d.hidden, d.bias);
  table.norm("norm_2", d.hidden, d.bias);
  table.linear("ffn.up_proj", d.hidden, d.ffn, d.bias);
  table.linear("ffn.down_proj", d.ffn, d.hidden, d.bias);
}

// Transformers' MptForCausalLM has ALiBi, no biases and an MLP of four times the width, whatever
// the config says; llm-foundry's MPTForCausalLM reads no_bias, learned_pos_emb, attn_config.alibi
// and expansion_ratio (llmfoundry/models/mpt/configuration_mpt.py). Where the config leaves them as
// they are in the released models, the two agree.
void build(const Config& config, Head head, ModelSpec& model) {
  const bool foundry = model.architecture == "MPTForCausalLM";
  const Key width{"d_model", "hidden_size"}, head_count{"n_heads", "num_attention_heads"};
  Dimensions d{};
  d.hidden = config.count(width, 2048);
  config.check_divides(head_count, config.count(head_count, 16), width, d.hidden);
  const std::int64_t expansion = config.count("expansion_ratio", 4);
  d.ffn = checked_multiply(foundry ? expansion : 4, d.hidden);
  d.bias = foundry && !config.flag("no_bias", false);
  const std::optional<Config> attention = config.section("attn_config");
  const bool alibi = !foundry || (attention && attention->flag("alibi", false));
  const std::int64_t vocab = config.count("vocab_size", 50368);
  const std::int64_t positions = config.count("max_seq_len", 2048);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("wte", vocab, d.hidden);
    if (!alibi && config.flag("learned_pos_emb", true)) table.embedding("wpe", positions, d.hidden);
    table.repeat("blocks", config.repeats({"n_layers", "num_hidden_layers"}, 24),
                 [&] { add_block(table, d); });
    table.norm("norm_f", d.hidden, d.bias);
  });
  if (head == Head::language_model)
    table.head("lm_head", d.hidden, vocab, config.flag("tie_word_embeddings", true));
  add_classifier(table, config, head, d.hidden);
  model.parameters = table.take();
  model.max_positions = positions;
}
}  // namespace

Family mpt() {
  return {.model_type = "mpt",
          .architectures = {{"MptForCausalLM", Head::language_model},
                            {"MPTForCausalLM", Head::language_model},
                            {"MptModel", Head::base},
                            {"MptForSequenceClassification", Head::sequence_classification},
                            {"MptForTokenClassification", Head::token_classification}},
          .lora_targets = {"Wqkv"},
          .build = build};
}

}  // namespace plimsoll::models::families
