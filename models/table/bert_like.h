// The encoder that BERT made common, shared by BERT and RoBERTa.
#pragma once

#include "models/table/table.h"

namespace plimsoll::models::families {

struct BertLike {
  std::int64_t vocab = 0, hidden = 0, ffn = 0, layers = 0, heads = 0, positions = 0, types = 0;
  bool cross_attention = false, relative_positions = false, tied = true;
};

BertLike read_bert_like(const Config& config, BertLike defaults);

// embeddings, encoder and, with `pooler`, pooler.
void add_bert_encoder(Table& table, const BertLike& bert, bool pooler);

// "<module>.weight" tied to the word embeddings, and "<module>.bias" tied to `bias`, which is there
// under its own name.
void add_tied_decoder(Table& table, const BertLike& bert, std::string_view module,
                      std::string_view bias);

}  // namespace plimsoll::models::families
