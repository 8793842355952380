#include "models/lengths.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "models/base/error.h"

namespace plimsoll::models {

namespace {

// datasets.map(batched=True) hands pack_dataset a thousand samples at a time (datasets,
// arrow_dataset.py, batch_size): each of them is packed on its own.
constexpr std::size_t kPackedTogether = 1000;

std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return checked_multiply(ceil_divide(value, multiple), multiple);
}

// trl/data_utils.py, _pack_wrapped: all tokens behind each other, cut every max_length.
void wrap(std::span<const std::int64_t> samples, std::int64_t most, std::vector<Item>& out) {
  std::int64_t tokens = 0;
  for (const std::int64_t n : samples) tokens += n;
  for (; tokens > 0; tokens -= most)
    out.push_back({std::min(tokens, most), 1, std::min(tokens, most)});
}

// trl/data_utils.py, _pack_bfd: the longest first, each into the row with the least room that takes
// it, of rows with equal room into the oldest.
void fit_best(std::span<const std::int64_t> samples, std::int64_t most, std::vector<Item>& out) {
  std::vector<std::int64_t> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted, std::greater{});
  std::multimap<std::int64_t, std::size_t> room;  // what is left of each row
  for (const std::int64_t n : sorted) {
    auto row = room.lower_bound(n);
    if (row == room.end()) {
      out.push_back({0, 0, n});
      row = room.emplace(most, out.size() - 1);
    }
    const std::size_t at = row->second;
    out[at].tokens += n;
    ++out[at].samples;
    room.erase(row);
    room.emplace(most - out[at].tokens, at);
  }
}

// log of "n choose k"; minus infinity where there is no choice.
double log_choose(std::int64_t n, std::int64_t k) {
  if (k < 0 || k > n) return -INFINITY;
  const auto log_factorial = [](std::int64_t x) { return std::lgamma(static_cast<double>(x) + 1); };
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

class Draw {
 public:
  Draw(std::vector<Item> items, const Collation& collation, const Batch& batch)
      : items_(std::move(items)), how_(collation), batch_(batch), each_(batch.micro_batch) {
    std::ranges::sort(items_, {}, &Item::tokens);
    check(count() >= each_, ErrorKind::bad_input, [&] {
      return "--data: " + std::to_string(count()) + " rows do not fill a micro-batch of " +
             std::to_string(each_);
    });
  }

  // The width of a row whose longest item has `tokens`.
  std::int64_t width(std::int64_t tokens) const {
    return up_to(how_.padding == Padding::max ? how_.max_length : tokens, how_.multiple);
  }
  bool flattens() const { return how_.padding == Padding::free; }

  // The chance that no item of a micro-batch is behind the first `n`.
  double within(std::int64_t n) const {
    return std::exp(log_choose(n, each_) - log_choose(count(), each_));
  }

  DrawnBatch worst() const { return flattens() ? flattened(top()) : padded_worst(); }

  // The chance that a micro-batch is as large as the worst.
  double worst_chance() const { return flattens() ? flattened_chance() : padded_chance(); }

  // The place of the first worst item, where one decides; otherwise nothing.
  double worst_items() const {
    return flattens() ? 0 : static_cast<double>(count() - first_widest());
  }

  DrawnBatch median() const { return flattens() ? flattened_median() : padded_median(); }

  // Positions that a micro-batch computes, on average.
  double positions() const {
    if (flattens()) return static_cast<double>(each_) * mean();
    double sum = 0, before = 0;
    for (std::int64_t i = 0; i < count();) {
      std::int64_t next = i;
      while (next < count() && width(at(next)) == width(at(i))) ++next;
      const double now = within(next);
      sum += (now - before) * static_cast<double>(each_) * static_cast<double>(width(at(i)));
      before = now;
      i = next;
    }
    return sum;
  }
  double mean() const {
    double sum = 0;
    for (const Item& item : items_) sum += static_cast<double>(item.tokens);
    return sum / static_cast<double>(count());
  }
  std::int64_t count() const { return static_cast<std::int64_t>(items_.size()); }

 private:
  std::int64_t at(std::int64_t i) const { return items_[static_cast<std::size_t>(i)].tokens; }
  std::int64_t widest() const { return width(items_.back().tokens); }
  std::int64_t first_widest() const {
    std::int64_t i = count();
    while (i > 0 && width(at(i - 1)) == widest()) --i;
    return i;
  }
  // Items that leave padding in a row as wide as the widest.
  std::int64_t shorter() const {
    std::int64_t i = 0;
    while (i < count() && at(i) < widest()) ++i;
    return i;
  }

  DrawnBatch padded(std::int64_t width, std::int64_t real) const {
    DrawnBatch out{Rows::full, batch_};
    out.batch.seq_len = width;
    if (real < checked_multiply(width, each_)) {
      out.rows = Rows::padded;
      out.batch.real_tokens = real;
    }
    return out;
  }
  // Rows with padding need more than full ones: of the longest items one leaves some, if any does.
  DrawnBatch padded_worst() const {
    std::int64_t real = 0;
    for (std::int64_t i = count() - each_; i < count(); ++i) real += at(i);
    const std::int64_t full = checked_multiply(widest(), each_);
    const std::int64_t leaves = shorter();
    const bool one_is_widest = first_widest() < leaves;
    if (real == full && leaves > 0 && (each_ > 1 || one_is_widest))
      real += at(leaves - 1) - widest();
    return padded(widest(), real);
  }
  double padded_chance() const {
    const double all = log_choose(count(), each_);
    const double none = std::exp(log_choose(first_widest(), each_) - all);
    const bool leaves_some = padded_worst().rows == Rows::padded;
    const double full = leaves_some ? std::exp(log_choose(count() - shorter(), each_) - all) : 0;
    return std::max(0.0, 1 - none - full);
  }
  DrawnBatch padded_median() const {
    std::int64_t i = 0;
    while (i + 1 < count() && within(i + 1) < 0.5 - 1e-9) ++i;  // of factorials' logarithms
    const std::int64_t wide = width(at(i));
    const auto real = static_cast<std::int64_t>(mean() * static_cast<double>(each_));
    return padded(wide, std::min(std::max(real, at(i)), checked_multiply(wide, each_)));
  }

  std::vector<Item> top() const { return {items_.end() - each_, items_.end()}; }
  DrawnBatch flattened(const std::vector<Item>& of) const {
    DrawnBatch out{Rows::flattened, batch_};
    std::int64_t tokens = 0, samples = 0, longest = 0;
    for (const Item& item : of) {
      tokens += item.tokens;
      samples += item.samples;
      longest = std::max(longest, item.longest);
    }
    out.batch.seq_len = longest;
    out.batch.row_tokens = up_to(tokens, how_.multiple);
    out.batch.row_samples = samples;
    return out;
  }
  // All items longer than the shortest of the b longest, and as many as needed of its length.
  double flattened_chance() const {
    const std::int64_t least = at(count() - each_);
    std::int64_t equal = 0, longer = 0;
    for (const Item& item : items_) {
      equal += item.tokens == least;
      longer += item.tokens > least;
    }
    return std::exp(log_choose(equal, each_ - longer) - log_choose(count(), each_));
  }
  // Of a thousand and one micro-batches that are drawn here, by a generator that is the same
  // everywhere (Knuth's MMIX).
  DrawnBatch flattened_median() const {
    std::vector<std::vector<Item>> drawn;
    std::uint64_t state = 1;
    for (int i = 0; i < 1001; ++i) {
      std::set<std::size_t> taken;
      while (taken.size() < static_cast<std::size_t>(each_)) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        taken.insert(static_cast<std::size_t>((state >> 33) % items_.size()));
      }
      std::vector<Item>& one = drawn.emplace_back();
      for (const std::size_t place : taken) one.push_back(items_[place]);
    }
    const auto tokens = [](const std::vector<Item>& of) {
      std::int64_t sum = 0;
      for (const Item& item : of) sum += item.tokens;
      return sum;
    };
    std::ranges::nth_element(drawn, drawn.begin() + 500, {}, tokens);
    return flattened(drawn[500]);
  }

  std::vector<Item> items_;  // by length
  Collation how_;
  Batch batch_;
  std::int64_t each_;
};

}  // namespace

std::vector<Item> items_of(const Lengths& lengths, const Collation& collation) {
  std::vector<std::int64_t> cut = lengths.tokens;
  // Wrapped rows lose nothing: samples are cut where a row ends.
  if (collation.max_length > 0 && collation.packing != Packing::wrapped)
    for (std::int64_t& n : cut) n = std::min(n, collation.max_length);
  std::vector<Item> items;
  if (collation.packing == Packing::no) {
    for (const std::int64_t n : cut) items.push_back({n, 1, n});
    return items;
  }
  for (std::size_t i = 0; i < cut.size(); i += kPackedTogether) {
    const auto part = std::span(cut).subspan(i, std::min(kPackedTogether, cut.size() - i));
    collation.packing == Packing::wrapped ? wrap(part, collation.max_length, items)
                                          : fit_best(part, collation.max_length, items);
  }
  return items;
}

BatchesOfData batches_of(const Lengths& lengths, const Collation& collation, const Batch& batch,
                         std::int64_t ranks) {
  std::vector<Item> items = items_of(lengths, collation);
  BatchesOfData out;
  out.samples = static_cast<std::int64_t>(lengths.tokens.size());
  out.longest = std::ranges::max(lengths.tokens);
  if (collation.max_length > 0)
    out.cut = std::ranges::count_if(lengths.tokens,
                                    [&](std::int64_t n) { return n > collation.max_length; });
  for (const Item& item : items) out.tokens += item.tokens;
  const Draw draw(std::move(items), collation, batch);
  out.items = draw.count();
  out.worst = draw.worst();
  out.median = draw.median();
  const auto micro_batches =
      static_cast<double>(checked_multiply(batch.grad_accum, std::max<std::int64_t>(1, ranks)));
  const double items_per_step = micro_batches * static_cast<double>(batch.micro_batch);
  out.steps_per_epoch = std::max(1.0, static_cast<double>(draw.count()) / items_per_step);
  out.worst_per_step = -std::expm1(micro_batches * std::log1p(-draw.worst_chance()));
  // The first of m items among N, in an order drawn at random, stands at (N + 1) / (m + 1).
  const double first = draw.worst_items() > 0 ? (static_cast<double>(draw.count()) + 1) /
                                                    (draw.worst_items() + 1) / items_per_step
                                              : 1 / std::max(out.worst_per_step, 1e-300);
  out.first_worst_step = std::max(1.0, std::ceil(first));
  out.real_share = static_cast<double>(batch.micro_batch) * draw.mean() / draw.positions();
  out.real_tokens_per_step = draw.mean() * items_per_step;
  return out;
}

}  // namespace plimsoll::models
