#include "reports/snapshot/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "models/base/error.h"

namespace plimsoll::reports {

namespace {
// What a pickle may take in memory. A snapshot of ten million events stays below.
constexpr std::size_t kMostBytes = std::size_t{2} << 30;

// Lib/pickletools.py, `opcodes`: every opcode of Python 3.14, so that one which is refused has its
// name.
struct Named {
  unsigned char code;
  const char* name;
};
constexpr std::array kNames{
    Named{'I', "INT"},
    Named{'J', "BININT"},
    Named{'K', "BININT1"},
    Named{'M', "BININT2"},
    Named{'L', "LONG"},
    Named{0x8a, "LONG1"},
    Named{0x8b, "LONG4"},
    Named{'S', "STRING"},
    Named{'T', "BINSTRING"},
    Named{'U', "SHORT_BINSTRING"},
    Named{'B', "BINBYTES"},
    Named{'C', "SHORT_BINBYTES"},
    Named{0x8e, "BINBYTES8"},
    Named{0x96, "BYTEARRAY8"},
    Named{0x97, "NEXT_BUFFER"},
    Named{0x98, "READONLY_BUFFER"},
    Named{'N', "NONE"},
    Named{0x88, "NEWTRUE"},
    Named{0x89, "NEWFALSE"},
    Named{'V', "UNICODE"},
    Named{0x8c, "SHORT_BINUNICODE"},
    Named{'X', "BINUNICODE"},
    Named{0x8d, "BINUNICODE8"},
    Named{'F', "FLOAT"},
    Named{'G', "BINFLOAT"},
    Named{']', "EMPTY_LIST"},
    Named{'a', "APPEND"},
    Named{'e', "APPENDS"},
    Named{'l', "LIST"},
    Named{')', "EMPTY_TUPLE"},
    Named{'t', "TUPLE"},
    Named{0x85, "TUPLE1"},
    Named{0x86, "TUPLE2"},
    Named{0x87, "TUPLE3"},
    Named{'}', "EMPTY_DICT"},
    Named{'d', "DICT"},
    Named{'s', "SETITEM"},
    Named{'u', "SETITEMS"},
    Named{0x8f, "EMPTY_SET"},
    Named{0x90, "ADDITEMS"},
    Named{0x91, "FROZENSET"},
    Named{'0', "POP"},
    Named{'2', "DUP"},
    Named{'(', "MARK"},
    Named{'1', "POP_MARK"},
    Named{'g', "GET"},
    Named{'h', "BINGET"},
    Named{'j', "LONG_BINGET"},
    Named{'p', "PUT"},
    Named{'q', "BINPUT"},
    Named{'r', "LONG_BINPUT"},
    Named{0x94, "MEMOIZE"},
    Named{0x82, "EXT1"},
    Named{0x83, "EXT2"},
    Named{0x84, "EXT4"},
    Named{'c', "GLOBAL"},
    Named{0x93, "STACK_GLOBAL"},
    Named{'R', "REDUCE"},
    Named{'b', "BUILD"},
    Named{'i', "INST"},
    Named{'o', "OBJ"},
    Named{0x81, "NEWOBJ"},
    Named{0x92, "NEWOBJ_EX"},
    Named{0x80, "PROTO"},
    Named{'.', "STOP"},
    Named{0x95, "FRAME"},
    Named{'P', "PERSID"},
    Named{'Q', "BINPERSID"},
};

std::string name_of_opcode(unsigned char code) {
  for (const Named& opcode : kNames)
    if (opcode.code == code) return opcode.name;
  return fmt::format("0x{:02x}", code);
}
}  // namespace

class PickleReader {
 public:
  PickleReader(std::string_view content, const std::string& source)
      : content_(content), source_(source) {}

  Pickle run() {
    if (!is_pickle(content_)) refuse("is no pickle of protocol 2 to 5");
    at_ = 2;
    for (;;) {
      opcode_at_ = at_;
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      if (!number(code) && !text(code) && !container(code) && !memo(code))
        refuse(
            fmt::format("opcode {}, which no snapshot of torch.cuda.memory holds; nothing of it "
                        "was run",
                        name_of_opcode(code)));
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("ends within a value");
    if (at_ != content_.size()) refuse("something follows its end");
    out_.root_ = stack_[0];
    return std::move(out_);
  }

 private:
  using Kind = Pickle::Kind;
  using Id = Pickle::Id;

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::bad_input, fmt::format("{}: offset {}: {}", source_, opcode_at_, what));
  }

  std::string_view take(std::uint64_t size) {
    if (size > content_.size() - at_) refuse("the file is cut off");
    const std::string_view out = content_.substr(at_, static_cast<std::size_t>(size));
    at_ += static_cast<std::size_t>(size);
    return out;
  }

  // `bytes` <= 8, the lowest first.
  std::uint64_t little_endian(std::size_t bytes) {
    std::uint64_t out = 0;
    int shift = 0;
    for (const char c : take(bytes)) {
      out |= static_cast<std::uint64_t>(static_cast<unsigned char>(c)) << shift;
      shift += 8;
    }
    return out;
  }

  void spend(std::size_t bytes) {
    spent_ += bytes;
    if (spent_ > kMostBytes) refuse("holds more than 2 GiB of values");
  }

  void push(Kind kind, std::int64_t value) {
    spend(sizeof(Pickle::Node) + sizeof(Id));
    stack_.push_back(static_cast<Id>(out_.nodes_.size()));
    out_.nodes_.push_back({kind, value});
  }
  void push_text(std::string_view text) {
    spend(sizeof text);
    push(Kind::text, static_cast<std::int64_t>(out_.texts_.size()));
    out_.texts_.push_back(text);
  }
  void push_container(Kind kind, std::span<const Id> items) {
    spend(sizeof(std::vector<Id>) + items.size_bytes());
    const auto index = static_cast<std::int64_t>(out_.containers_.size());
    out_.containers_.emplace_back(items.begin(), items.end());
    push(kind, index);
  }

  Id pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back()))
      refuse("takes a value that is not there");
    const Id top = stack_.back();
    stack_.pop_back();
    return top;
  }

  // What lies above the last mark; gone from the stack with drop().
  std::span<const Id> marked() {
    if (marks_.empty()) refuse("takes a mark that is not there");
    return std::span<const Id>(stack_).subspan(marks_.back());
  }
  void drop() {
    stack_.resize(marks_.back());
    marks_.pop_back();
  }

  void add(Kind kind, std::span<const Id> items) {
    const Id target = stack_.empty() ? Id{0} : stack_.back();
    if (stack_.empty() || out_.kind(target) != kind)
      refuse(kind == Kind::list ? "adds to something that is no list"
                                : "adds to something that is no dictionary");
    if (kind == Kind::dict && items.size() % 2 != 0) refuse("a key without a value");
    spend(2 * items.size_bytes());  // a vector grows to twice its size
    std::vector<Id>& list = out_.containers_[out_.index(target)];
    list.insert(list.end(), items.begin(), items.end());
  }
  void add_marked(Kind kind) {
    const std::span<const Id> all = marked();
    const std::vector<Id> items(all.begin(), all.end());
    drop();
    add(kind, items);
  }

  // Beyond 64 bits: the nearest that there is (the numbers of memory pools are unsigned).
  void long1() {
    const std::string_view bytes = take(little_endian(1));
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = std::min<std::size_t>(8, bytes.size()); i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(bytes[i]);
    auto number = static_cast<std::int64_t>(value);
    if (bytes.size() > 8 || (bytes.size() == 8 && (number < 0) != negative))
      number = negative ? std::numeric_limits<std::int64_t>::min()
                        : std::numeric_limits<std::int64_t>::max();
    push(Kind::integer, number);
  }

  bool number(unsigned char code) {
    switch (code) {
      case 'N':
        push(Kind::none, 0);
        return true;
      case 0x88:
      case 0x89:
        push(Kind::truth, code == 0x88);
        return true;
      case 'J':
        push(Kind::integer, static_cast<std::int32_t>(little_endian(4)));
        return true;
      case 'K':
        push(Kind::integer, static_cast<std::int64_t>(little_endian(1)));
        return true;
      case 'M':
        push(Kind::integer, static_cast<std::int64_t>(little_endian(2)));
        return true;
      case 0x8a:
        long1();
        return true;
      case 'G':  // no reader of a snapshot needs its value
        take(8);
        push(Kind::real, 0);
        return true;
      default:
        return false;
    }
  }

  bool text(unsigned char code) {
    const std::size_t bytes = code == 0x8c ? 1 : code == 'X' ? 4 : code == 0x8d ? 8 : 0;
    if (bytes == 0) return false;
    const std::uint64_t size = little_endian(bytes);
    push_text(take(size));
    return true;
  }

  void tuple(std::size_t size) {
    std::array<Id, 3> items{};
    for (std::size_t i = size; i > 0; --i) items[i - 1] = pop();
    push_container(Kind::tuple, std::span<const Id>(items).first(size));
  }

  bool container(unsigned char code) {
    switch (code) {
      case ']':
        push_container(Kind::list, {});
        return true;
      case '}':
        push_container(Kind::dict, {});
        return true;
      case ')':
      case 0x85:
      case 0x86:
      case 0x87:
        tuple(code == ')' ? 0 : code - 0x84U);
        return true;
      case 't': {
        const std::span<const Id> all = marked();
        const std::vector<Id> items(all.begin(), all.end());
        drop();
        push_container(Kind::tuple, items);
        return true;
      }
      case '(':
        spend(sizeof(std::size_t));
        marks_.push_back(stack_.size());
        return true;
      case 'e':
      case 'u':
        add_marked(code == 'e' ? Kind::list : Kind::dict);
        return true;
      case 'a': {
        const std::array<Id, 1> item{pop()};
        add(Kind::list, item);
        return true;
      }
      case 's': {
        std::array<Id, 2> item{};
        item[1] = pop();
        item[0] = pop();
        add(Kind::dict, item);
        return true;
      }
      default:
        return false;
    }
  }

  void put(std::uint64_t slot) {
    if (stack_.empty()) refuse("remembers a value that is not there");
    if (slot > memo_.size()) refuse("a number of a value that is out of order");
    if (slot < memo_.size()) {
      memo_[static_cast<std::size_t>(slot)] = stack_.back();
      return;
    }
    spend(sizeof(Id));
    memo_.push_back(stack_.back());
  }

  void get(std::uint64_t slot) {
    if (slot >= memo_.size()) refuse("refers to a value that was not read");
    spend(sizeof(Id));
    stack_.push_back(memo_[static_cast<std::size_t>(slot)]);
  }

  bool memo(unsigned char code) {
    switch (code) {
      case 0x94:
        put(memo_.size());
        return true;
      case 'q':
        put(little_endian(1));
        return true;
      case 'r':
        put(little_endian(4));
        return true;
      case 'h':
        get(little_endian(1));
        return true;
      case 'j':
        get(little_endian(4));
        return true;
      case 0x95:  // FRAME: how much follows, for readers of pipes
        take(8);
        return true;
      default:
        return false;
    }
  }

  std::string_view content_;
  const std::string& source_;
  std::size_t at_ = 0, opcode_at_ = 0, spent_ = 0;
  std::vector<Id> stack_, memo_;
  std::vector<std::size_t> marks_;
  Pickle out_;
};

std::optional<Pickle::Id> Pickle::find(Id dict, std::string_view key) const {
  if (kind(dict) != Kind::dict) return std::nullopt;
  const std::span<const Id> all = items(dict);
  for (std::size_t i = all.size(); i >= 2; i -= 2)  // the last of equal keys counts
    if (kind(all[i - 2]) == Kind::text && text(all[i - 2]) == key) return all[i - 1];
  return std::nullopt;
}

bool is_pickle(std::string_view content) {
  return content.size() > 2 && content[0] == '\x80' && content[1] >= 2 && content[1] <= 5;
}

Pickle read_pickle(std::string_view content, const std::string& source) {
  return PickleReader(content, source).run();
}

}  // namespace plimsoll::reports
