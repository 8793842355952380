#include "models/table/bert_like.h"

namespace plimsoll::models::families {

namespace {
void add_predictions(Table& table, const BertLike& d) {
  table.inside("cls.predictions", [&] {
    table.linear("transform.dense", d.hidden, d.hidden, true);
    table.layer_norm("transform.LayerNorm", d.hidden);
    add_tied_decoder(table, d, "decoder", "bias");
  });
}

void build(const Config& config, Head head, ModelSpec& model) {
  const BertLike bert = read_bert_like(config, {.vocab = 30522, .positions = 512, .types = 2});
  const bool pooler =
      head == Head::base || head == Head::pretraining || head == Head::sequence_classification;
  Table table;
  table.inside(head == Head::base ? "" : "bert", [&] { add_bert_encoder(table, bert, pooler); });
  if (head == Head::language_model || head == Head::pretraining) add_predictions(table, bert);
  if (head == Head::pretraining) table.linear("cls.seq_relationship", bert.hidden, 2, true);
  if (head == Head::sequence_classification || head == Head::token_classification)
    table.linear("classifier", bert.hidden, labels(config), true, ModuleKind::head);
  if (head == Head::question_answering)
    table.linear("qa_outputs", bert.hidden, labels(config), true, ModuleKind::head);
  model.parameters = table.take();
  model.max_positions = bert.positions;
}
}  // namespace

Family bert() {
  return {.model_type = "bert",
          .architectures = {{"BertModel", Head::base},
                            {"BertForMaskedLM", Head::language_model},
                            {"BertLMHeadModel", Head::language_model},
                            {"BertForPreTraining", Head::pretraining},
                            {"BertForSequenceClassification", Head::sequence_classification},
                            {"BertForTokenClassification", Head::token_classification},
                            {"BertForQuestionAnswering", Head::question_answering}},
          .lora_targets = {"query", "value"},
          .build = build};
}

}  // namespace plimsoll::models::families
