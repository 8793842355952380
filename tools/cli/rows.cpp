#include "tools/cli/rows.h"

#include <algorithm>
#include <array>
#include <limits>

#include "models/decisions/mesh.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

using models::Packing;
using models::Padding;
using models::Rows;

namespace {
constexpr std::array<std::string_view, 3> kPackings{"no", "wrapped", "bfd"};

Packing packing_from(const Options& options) {
  const std::string* text = options.find("packing");
  return text == nullptr ? Packing::no
                         : static_cast<Packing>(name_index("packing", *text, kPackings));
}

// TRL flattens what it packs by best fit, whatever padding_free says (trl/trainer/sft_trainer.py,
// self.padding_free).
Padding padding_from(const Options& options, Packing packing) {
  const std::string* text = options.find("padding");
  if (text == nullptr) return packing == Packing::bfd ? Padding::free : Padding::longest;
  if (*text == "none")
    refuse_value("padding", *text, "with --data rows are padded (longest, max) or joined (free)");
  const Padding padding = *text == "free"  ? Padding::free
                          : *text == "max" ? Padding::max
                                           : Padding::longest;
  if (packing == Packing::bfd && padding != Padding::free)
    refuse_value("padding", *text, "TRL flattens the rows of --packing bfd (free)");
  if (packing == Packing::wrapped && padding == Padding::free)
    refuse_value(
        "padding", *text,
        "TRL warns against it with --packing wrapped, whose samples are cut (longest, max)");
  return padding;
}

models::Collation collation_from(const Options& options, std::int64_t most) {
  models::Collation out;
  out.packing = packing_from(options);
  out.padding = padding_from(options, out.packing);
  if (const std::string* text = options.find("pad-to-multiple-of"))
    out.multiple = whole("pad-to-multiple-of", *text, 1, 1 << 20);
  if (const std::string* text = options.find("seq-len"))
    out.max_length =
        whole("seq-len", *text, 1, most > 0 ? most : std::numeric_limits<std::int64_t>::max());
  if (out.max_length == 0 && (out.packing != Packing::no || out.padding == Padding::max))
    fail(ErrorKind::bad_input,
         std::string(out.packing != Packing::no ? "--packing" : "--padding max") +
             " needs --seq-len: how long rows are (max_length)");
  return out;
}
}  // namespace

Rows rows_from(const Options& options) {
  const std::string* padding = options.find("padding");
  const std::string* mask = options.find("padding-mask");
  const bool masked = mask != nullptr && yes_or_no("padding-mask", *mask);
  if (options.has("data")) {
    if (mask != nullptr)
      refuse_value("padding-mask", *mask, "--data says whether there is padding");
    return Rows::full;  // until the lengths are read
  }
  for (const char* option : {"packing", "pad-to-multiple-of"})
    if (const std::string* value = options.find(option); value != nullptr && *value != "no")
      refuse_value(option, *value, "needs --data, the samples' lengths");
  if (padding == nullptr || *padding == "none") return masked ? Rows::padded : Rows::full;
  if (*padding != "free") refuse_value("padding", *padding, "needs --data, the samples' lengths");
  if (masked)
    refuse_value("padding-mask", *mask, "--padding free leaves no padding, and brings no mask");
  return Rows::flattened;
}

void use_data(const Options& options, std::int64_t most, Request& request) {
  const std::string* path = options.find("data");
  if (path == nullptr) return;
  planner::Question& question = request.question;
  const models::Lengths lengths = models::read_lengths(*path);
  models::Collation how = collation_from(options, most);
  const std::int64_t longest = std::ranges::max(lengths.tokens);
  if (most > 0 && how.max_length == 0 && longest > most)
    refuse_value("data", *path,
                 "its longest sample has " + std::to_string(longest) + " tokens, the model takes " +
                     std::to_string(most) + " at most: --seq-len cuts them");
  request.data = models::batches_of(lengths, how, question.batch,
                                    models::decisions::data_ranks(question.strategy));
  question.batch = request.data->worst.batch;
  question.strategy.rows = request.data->worst.rows;
}

void add_batches(const Request& request, reports::Plan& plan) {
  if (!request.data) return;
  const models::BatchesOfData& data = *request.data;
  planner::Question median = request.question;
  median.batch = data.median.batch;
  median.strategy.rows = data.median.rows;
  median.remedies = false;
  median.detail = planner::Detail::none;
  const reports::Plan of_median = planner::plan(median);
  reports::DataSet& out = plan.data.emplace();
  out.batches = data;
  out.median_peak = of_median.peak;
  out.median_device = of_median.device;
  // Its positions are those of the median step; of these on average so many are no padding.
  if (of_median.time.tokens_per_second)
    out.real_tokens_per_second = *of_median.time.tokens_per_second * data.real_share;
}

}  // namespace plimsoll::tools
