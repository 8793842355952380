// How long a data set's samples are, and which batches a data loader makes of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/run_spec.h"

namespace plimsoll::models {

// Tokens of each sample, in the order of the file (of a histogram: of its rows).
struct Lengths {
  std::vector<std::int64_t> tokens;
};

// JSONL: an object a line with "input_ids" (a list), or "length" or "num_tokens" (a count). CSV:
// the heads "length,count", a row for each length. Error{bad_input}, naming file and line: anything
// else, text alone among it (how many tokens a text has is its tokenizer's to say), no sample.
Lengths read_lengths(const std::string& path);
Lengths lengths_from_jsonl(std::string_view text, const std::string& source);
Lengths lengths_from_csv(std::string_view text, const std::string& source);

// longest: to the longest of the micro-batch (DataCollatorWithPadding); max: to max_length; free:
// not at all, a row of all (DataCollatorWithFlattening).
enum class Padding : std::uint8_t { longest, max, free };
// TRL's pack_dataset: rows that are filled whatever is cut; samples whole, by best fit decreasing.
enum class Packing : std::uint8_t { no, wrapped, bfd };

struct Collation {
  Padding padding = Padding::longest;
  Packing packing = Packing::no;
  std::int64_t max_length = 0;  // samples are cut to it; 0: none is
  std::int64_t multiple = 1;  // pad_to_multiple_of
};

// What a loader draws: a sample, or a packed row.
struct Item {
  std::int64_t tokens = 0, samples = 1, longest = 0;  // of its samples
  bool operator==(const Item&) const = default;
};
std::vector<Item> items_of(const Lengths& lengths, const Collation& collation);

struct DrawnBatch {
  Rows rows = Rows::full;
  Batch batch;
};

// Of batches that are drawn without replacement, as a random sampler does.
struct BatchesOfData {
  std::int64_t samples = 0, cut = 0, items = 0, longest = 0, tokens = 0;  // tokens: after cutting
  DrawnBatch worst, median;
  double steps_per_epoch = 0;
  double worst_per_step = 0;  // the chance that a step has such a micro-batch on some rank
  double first_worst_step = 0;  // when it is expected first; may lie behind the first epoch
  double real_share = 1;  // of the positions that are computed
  double real_tokens_per_step = 0;
};

// `batch`: micro_batch and grad_accum. Error{bad_input}: fewer items than a micro-batch takes.
BatchesOfData batches_of(const Lengths& lengths, const Collation& collation, const Batch& batch,
                         std::int64_t ranks);

}  // namespace plimsoll::models
