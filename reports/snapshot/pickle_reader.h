// Python's pickle as data: nothing in it is run. Protocols 2 to 5 (Lib/pickletools.py), and of
// their opcodes only those that torch.cuda.memory._dump_snapshot() needs: dictionaries, lists,
// tuples, texts, numbers, booleans, None, and references to what was read before. Any other is
// refused by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::reports {

// Values stand once, however often the pickle refers to them; a list may even hold itself.
class Pickle {
 public:
  using Id = std::uint32_t;
  enum class Kind : std::uint8_t { none, truth, integer, real, text, list, tuple, dict };

  Id root() const { return root_; }
  Kind kind(Id id) const { return nodes_[id].kind; }
  // Of an integer or a truth; of other kinds meaningless.
  std::int64_t integer(Id id) const { return nodes_[id].value; }
  // Of a text, as long as the pickle's content lives.
  std::string_view text(Id id) const { return texts_[index(id)]; }
  // Of a list or a tuple its items; of a dictionary keys and values in turn.
  std::span<const Id> items(Id id) const { return containers_[index(id)]; }
  // Of a dictionary. Nothing: no such key, or no dictionary.
  std::optional<Id> find(Id dict, std::string_view key) const;

 private:
  friend class PickleReader;
  struct Node {
    Kind kind = Kind::none;
    std::int64_t value = 0;
  };
  std::size_t index(Id id) const { return static_cast<std::size_t>(nodes_[id].value); }

  std::vector<Node> nodes_;
  std::vector<std::string_view> texts_;
  std::vector<std::vector<Id>> containers_;
  Id root_ = 0;
};

// Whether `content` begins as a pickle of protocol 2 or later does: no JSON and no text does.
bool is_pickle(std::string_view content);

// `content` must outlive the result, which takes at most 2 GiB. Error{bad_input} naming `source`
// and the offset: no pickle, a damaged one, or one with an opcode that no snapshot needs.
Pickle read_pickle(std::string_view content, const std::string& source);

}  // namespace plimsoll::reports
