#include "models/table/bert_like.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  const BertLike d = read_bert_like(config, {.vocab = 50265, .positions = 512, .types = 2});
  Table table;
  table.inside(head == Head::base ? "" : "roberta",
               [&] { add_bert_encoder(table, d, head == Head::base); });
  if (head == Head::language_model)
    table.inside("lm_head", [&] {
      table.linear("dense", d.hidden, d.hidden, true);
      table.layer_norm("layer_norm", d.hidden);
      add_tied_decoder(table, d, "decoder", "bias");
    });
  if (head == Head::sequence_classification) {
    table.linear("classifier.dense", d.hidden, d.hidden, true, ModuleKind::head);
    table.linear("classifier.out_proj", d.hidden, labels(config), true, ModuleKind::head);
  }
  if (head == Head::token_classification)
    table.linear("classifier", d.hidden, labels(config), true, ModuleKind::head);
  if (head == Head::question_answering)
    table.linear("qa_outputs", d.hidden, labels(config), true, ModuleKind::head);
  model.parameters = table.take();
  // Positions start behind the padding index (modeling_roberta.py,
  // create_position_ids_from_input_ids).
  const std::int64_t padding = config.natural("pad_token_id", 1);
  model.max_positions = std::max<std::int64_t>(1, d.positions - padding - 1);
}
}  // namespace

Family roberta() {
  return {.model_type = "roberta",
          .architectures = {{"RobertaModel", Head::base},
                            {"RobertaForMaskedLM", Head::language_model},
                            {"RobertaForCausalLM", Head::language_model},
                            {"RobertaForSequenceClassification", Head::sequence_classification},
                            {"RobertaForTokenClassification", Head::token_classification},
                            {"RobertaForQuestionAnswering", Head::question_answering}},
          .lora_targets = {"query", "value"},
          .build = build};
}

}  // namespace plimsoll::models::families
