#include <algorithm>
#include <utility>

#include "planner/stacks/pytorch/tape/script.h"

namespace plimsoll::planner::tape {

namespace {

class Forward {
 public:
  Forward(const Function& function, bool saves) : f_(function) {
    const std::size_t n = f_.values().size();
    block_.assign(n, -1);
    last_use_.assign(n, -1);
    stays_.assign(n, false);
    if (saves)
      for (const ValueId id : f_.kept()) stays_[static_cast<std::size_t>(id)] = true;
    int at = 0;
    for (const Operation& operation : f_.operations()) {
      for (const ValueId id : operation.in) use(id, at);
      use(operation.out, at);
      use(operation.beside, at++);
    }
    for (std::size_t i = 0; i < n; ++i)
      if (f_.held(static_cast<ValueId>(i))) last_use_[i] = at;
  }

  Script run(std::size_t operations, bool returns) {
    for (std::size_t i = 0; i < operations; ++i) run(f_.operations()[i], static_cast<int>(i));
    const ValueId result = returns ? f_.value(f_.result()).storage : kNone;
    for (std::size_t i = 0; i < block_.size(); ++i)
      if (static_cast<ValueId>(i) != result) drop(i);
    return std::move(script_);
  }

 private:
  std::size_t storage(ValueId id) const { return static_cast<std::size_t>(f_.value(id).storage); }
  void use(ValueId id, int at) {
    if (id != kNone) last_use_[storage(id)] = at;
  }

  void run(const Operation& operation, int at) {
    for (const ValueId id : operation.in)
      if (id != kNone) read(storage(id));
    // A division in place copies what it divides before it runs.
    if (operation.out != kNone && !in_place(operation.kind)) take(operation.out);
    if (operation.beside != kNone && operation.kind != Kind::chunk) take(operation.beside);
    if (operation.kind == Kind::grouped_product || operation.kind == Kind::integers)
      scratch(operation.scratch);
    note_moved(operation);
    for (const ValueId id : operation.in) end(id, at);
    end(operation.out, at);
    end(operation.beside, at);
  }
  void scratch(const std::array<Extent, 2>& extents) {
    std::array<std::int16_t, 2> taken{-1, -1};
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (extents[i] == kAll) continue;
      taken[i] = static_cast<std::int16_t>(script_.blocks.size());
      script_.blocks.push_back({{extents[i], DType::boolean}});
      script_.steps.push_back({Step::What::take, taken[i]});
    }
    for (const std::int16_t block : taken)
      if (block >= 0) script_.steps.push_back({Step::What::drop, block});
  }
  void end(ValueId id, int at) {
    if (id != kNone && last_use_[storage(id)] == at && !is_result(id)) drop(storage(id));
  }

  bool is_result(ValueId id) const { return storage(id) == storage(f_.result()); }

  void read(std::size_t storage) {
    const Value& value = f_.values()[storage];
    if (value.made || value.parameter) return;
    if (block_[storage] < 0) add(storage, {value.size, Role::given, static_cast<ValueId>(storage)});
    step(Step::What::read, storage);
  }
  void take(ValueId id) {
    const std::size_t at = storage(id);
    const Role role = is_result(id) ? Role::result : stays_[at] ? Role::kept : Role::scratch;
    add(at, {f_.value(id).size, role, id});
    step(Step::What::take, at);
  }
  // What is there and belongs to nobody.
  void drop(std::size_t storage) {
    if (block_[storage] < 0 || stays_[storage] || !f_.values()[storage].made) return;
    step(Step::What::drop, storage);
    block_[storage] = -1;
  }
  void add(std::size_t storage, Block block) {
    block_[storage] = static_cast<std::int16_t>(script_.blocks.size());
    script_.blocks.push_back(block);
  }
  void step(Step::What what, std::size_t storage) {
    script_.steps.push_back({what, block_[storage]});
  }
  // A grouped product's work is its writer's to say; a gather reads the rows that it writes.
  void note_moved(const Operation& of) {
    const Kind kind = of.kind;
    if (kind == Kind::slice || kind == Kind::chunk || kind == Kind::leave ||
        kind == Kind::grouped_product)
      return;
    const Size out = f_.value(of.out).size;
    moves(out, true);
    if (kind == Kind::index) return moves(out, false);
    for (const ValueId id : of.in)
      if (id != kNone) moves(f_.value(id).size, false);
  }
  void moves(Size size, bool launches) {
    script_.moved.push_back({script_.steps.size(), size, launches});
  }

  const Function& f_;
  Script script_;
  std::vector<std::int16_t> block_;  // by storage, while it is there
  std::vector<int> last_use_;
  std::vector<bool> stays_;
};

}  // namespace

// Operands are packed before an operation runs, results after.
Script forward(const Function& function, bool saves, bool stops) {
  const auto& operations = function.operations();
  std::size_t count = operations.size();
  if (stops) {
    const auto last = std::find_if(operations.rbegin(), operations.rend(),
                                   [&](const auto& of) { return !function.kept_by(of).none(); });
    count = static_cast<std::size_t>(operations.rend() - last);
    const auto runs = [](const Function::Keeps& last_of) { return last_of.out || last_of.beside; };
    if (count > 0 && !runs(function.kept_by(operations[count - 1]))) --count;
  }
  return Forward(function, saves).run(count, count == operations.size());
}

}  // namespace plimsoll::planner::tape
