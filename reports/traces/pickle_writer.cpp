#include "reports/traces/pickle_writer.h"

#include <limits>

#include "models/base/error.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
// Python's own pickler appends as many at once. A reader in JavaScript passes them as arguments of
// one call, of which there cannot be any number.
constexpr std::int64_t kBatch = 1000;

void add_little_endian(std::string& out, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}
}  // namespace

PickleWriter::PickleWriter(std::string& out) : out_(out) {
  out_ += "\x80\x02";  // PROTO 2
}

void PickleWriter::finish() {
  check(items_.empty(), ErrorKind::internal, "a pickle that ends within a list");
  out_ += '.';  // STOP
}

// Of a long list, what there is goes in before the next item.
void PickleWriter::item() {
  if (items_.empty() || items_.back() < 0) return;
  if (items_.back() == kBatch) {
    out_ += "e(";  // APPENDS, MARK
    items_.back() = 0;
  }
  ++items_.back();
}

void PickleWriter::begin_dict() {
  item();
  out_ += "}(";  // EMPTY_DICT, MARK
  items_.push_back(-1);
}

void PickleWriter::end_dict() {
  out_ += 'u';  // SETITEMS
  items_.pop_back();
}

void PickleWriter::begin_list() {
  item();
  out_ += "](";  // EMPTY_LIST, MARK
  items_.push_back(0);
}

void PickleWriter::end_list() {
  out_ += 'e';  // APPENDS
  items_.pop_back();
}

void PickleWriter::raw_text(std::string_view text) {
  out_ += 'X';  // BINUNICODE
  add_little_endian(out_, text.size(), 4);
  out_ += text;
}

void PickleWriter::key(std::string_view name) {
  const auto at = known_.find(name);
  if (at != known_.end()) {
    out_ += 'h';  // BINGET
    out_ += static_cast<char>(at->second);
    return;
  }
  raw_text(name);
  check(known_.size() < 256, ErrorKind::internal, "a pickle of more than 256 different keys");
  const auto number = static_cast<std::uint8_t>(known_.size());
  out_ += 'q';  // BINPUT
  out_ += static_cast<char>(number);
  known_.emplace(name, number);
}

void PickleWriter::value(std::int64_t number) {
  item();
  using Short = std::numeric_limits<std::int32_t>;
  const bool is_short = number >= Short::min() && number <= Short::max();
  out_ += is_short ? "J" : "\x8a\x08";  // BININT, or LONG1 of eight bytes
  add_little_endian(out_, static_cast<std::uint64_t>(number), is_short ? 4 : 8);
}

void PickleWriter::value(std::string_view text) {
  item();
  raw_text(printable(text));
}

void PickleWriter::value(bool truth) {
  item();
  out_ += truth ? '\x88' : '\x89';  // NEWTRUE, NEWFALSE
}

void PickleWriter::none() {
  item();
  out_ += 'N';
}

}  // namespace plimsoll::reports
