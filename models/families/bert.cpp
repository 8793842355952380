#include "models/table/bert_like.h"
#include "models/table/block_builder.h"

namespace plimsoll::models::families {

namespace {
void add_predictions(Table& table, const BertLike& d) {
  table.inside("cls.predictions", [&] {
    table.linear("transform.dense", d.hidden, d.hidden, true);
    table.layer_norm("transform.LayerNorm", d.hidden);
    add_tied_decoder(table, d, "decoder", "bias");
  });
}

// What keeps the step program from describing this config; "" for nothing.
std::string difference(const Config& config, const ModelSpec& model, const BertLike& d) {
  const bool known = model.architecture == "BertForMaskedLM" ||
                     model.architecture == "BertForSequenceClassification";
  if (!known) return "architecture " + model.architecture;
  if (config.flag("is_decoder", false)) return "is_decoder of bert";
  if (d.relative_positions)
    return "position_embedding_type '" + config.text("position_embedding_type", "absolute") + "'";
  if (config.natural("chunk_size_feed_forward", 0) > 0) return "chunk_size_feed_forward of bert";
  const std::string activation = config.text("hidden_act", "gelu");
  const bool modelled = activation == "gelu" || activation == "gelu_pytorch_tanh";
  return modelled ? "" : "hidden_act '" + activation + "' of bert";
}

void set_decoder(ModelSpec& model, const Config& config, const BertLike& d, bool masked) {
  const double dropout = config.probability("hidden_dropout_prob", 0.1);
  model.decoder =
      Decoder{.hidden = d.hidden,
              .layers = d.layers,
              .heads = d.heads,
              .kv_heads = d.heads,
              .head_dim = d.hidden / d.heads,
              .ffn = d.ffn,
              .vocab = d.vocab,
              .embedding_norm = true,
              .token_types = d.types,
              .bidirectional = true,
              .head_transform = masked,
              .masked_loss = masked,
              .pooled = !masked,
              .classifier_dropout = config.probability("classifier_dropout", dropout),
              .norm = NormKind::layer_norm,
              .position = PositionKind::learned,
              .mlp = mlp_of(*activation_named(config.text("hidden_act", "gelu"))),
              .qkv_bias = true,
              .out_bias = true,
              .mlp_bias = true,
              .tied_head = d.tied,
              .embedding_dropout = dropout,
              .attention_dropout = config.probability("attention_probs_dropout_prob", 0.1),
              .residual_dropout = dropout};
}

// transformers models/bert/modeling_bert.py, BertLayer.forward. BertSelfOutput and BertOutput add
// the residual as an argument of their norm, and hold the branch until that returned.
Block block_of(const ModelSpec& model, const Config& config) {
  const Decoder& d = *model.decoder;
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId q = b.linear("attention.self.query", kBlockInput);
  const ValueId k = b.linear("attention.self.key", kBlockInput);
  const ValueId v = b.linear("attention.self.value", kBlockInput);
  const ValueList attention = b.attention("attention.self", q, k, v, EagerSoftmax::uncast);
  b.leave("attention.self", {q, k, v});
  const ValueId o = b.linear("attention.output.dense", attention[0]);
  const ValueId attended = b.dropout("attention.output.dropout", o, d.residual_dropout);
  const ValueId middle = b.add("attention.output", kBlockInput, attended);
  const ValueId x = b.norm("attention.output.LayerNorm", middle);
  b.leave("attention", {middle, attended, attention[0]});
  const ValueId up = b.linear("intermediate.dense", x);
  const ValueId activated = b.activation("intermediate.intermediate_act_fn", up,
                                         *activation_named(config.text("hidden_act", "gelu")));
  const ValueId down = b.linear("output.dense", activated);
  const ValueId branch = b.dropout("output.dropout", down, d.residual_dropout);
  const ValueId sum = b.add("output", x, branch);
  b.norm("output.LayerNorm", sum);
  b.leave("output", {sum, branch, activated, x, attention[1], kBlockInput});
  return b.take();
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
  model.no_decoder = difference(config, model, bert);
  if (!model.no_decoder.empty()) return;
  set_decoder(model, config, bert, head == Head::language_model);
  model.blocks = {std::make_shared<const Block>(block_of(model, config))};
}
}  // namespace

Family bert() {
  return {.model_type = "bert",
          .architectures = {{"BertForMaskedLM", Head::language_model},
                            {"BertModel", Head::base},
                            {"BertLMHeadModel", Head::language_model},
                            {"BertForPreTraining", Head::pretraining},
                            {"BertForSequenceClassification", Head::sequence_classification},
                            {"BertForTokenClassification", Head::token_classification},
                            {"BertForQuestionAnswering", Head::question_answering}},
          .lora_targets = {"query", "value"},
          .build = build};
}

}  // namespace plimsoll::models::families
