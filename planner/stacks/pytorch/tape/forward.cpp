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
      for (const ValueId id : operation.through) use(id, at);
      use(operation.out, at);
      use(operation.beside, at++);
    }
    for (std::size_t i = 0; i < n; ++i)
      if (f_.held(static_cast<ValueId>(i))) last_use_[i] = at;
  }

  Script run(std::size_t operations, bool returns) {
    for (std::size_t i = 0; i < f_.operations().size(); ++i)
      if (const Operation& of = f_.operations()[i]; i < operations || of.kind == Kind::leave)
        run(of, static_cast<int>(i));
    for (std::size_t i = 0; i < block_.size(); ++i)
      if (!returns || !is_result(static_cast<ValueId>(i))) drop(i);
    return std::move(script_);
  }

 private:
  std::size_t storage(ValueId id) const { return static_cast<std::size_t>(f_.value(id).storage); }
  void use(ValueId id, int at) {
    if (id != kNone) last_use_[storage(id)] = at;
  }

  void run(const Operation& operation, int at) {
    begin_part(operation, at);
    for (const Operands& of : {operation.in, operation.through})
      for (const ValueId id : of)
        if (id != kNone) read(storage(id));
    // A division in place copies what it divides before it runs; a dropout's mask comes first.
    if (operation.kind == Kind::dropout) take(operation.beside);
    if (operation.out != kNone && !in_place(operation.kind)) take(operation.out);
    if (operation.beside != kNone && operation.kind != Kind::chunk &&
        operation.kind != Kind::dropout)
      take(operation.beside);
    if (operation.kind == Kind::grouped_mm || operation.kind == Kind::integers ||
        operation.kind == Kind::safe_softmax || operation.kind == Kind::fold)
      scratch(operation.scratch);
    note_moved(operation);
    for (const ValueId id : operation.in) end(id, at);
    for (const ValueId id : operation.through) end(id, at);
    end(operation.out, at);
    end(operation.beside, at);
  }
  // What a frame holds goes at once.
  void begin_part(const Operation& operation, int at) {
    if (!f_.parts_operations()) return;
    if (operation.kind == Kind::leave) {
      if (left_ != at - 1) script_.steps.push_back({Step::What::leave});
      left_ = at;
    } else if (!in_place(operation.kind)) {
      script_.part(f_, operation);
    }
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

  bool is_result(ValueId id) const { return f_.is_result(id); }

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
  // A grouped GEMM's work is its writer's to say; a gather reads the rows that it writes. A safe
  // softmax writes booleans of what is masked, and reads them.
  void note_moved(const Operation& of) {
    const Kind kind = of.kind;
    if (kind == Kind::slice || kind == Kind::chunk || kind == Kind::leave ||
        kind == Kind::laid_out || kind == Kind::view || kind == Kind::expand ||
        kind == Kind::grouped_mm)
      return;
    const Size out = f_.value(of.out).size;
    if (is_bmm(kind))
      return script_.multiplied.push_back({script_.steps.size(), out.dtype, of.shape});
    moves(out, true);
    if (kind == Kind::index) return moves(out, false);
    if (kind == Kind::nll) return;  // one value of each row
    if (kind == Kind::dropout) moves(f_.value(of.beside).size, false);
    for (const ValueId id : of.in)
      if (id != kNone) moves(read_of(id), false);
    if (kind != Kind::safe_softmax) return;
    const Size booleans{out.extent, DType::boolean};
    moves(booleans, true);
    moves(out, false);
    moves(booleans, true);
  }
  // Of an expanded view its one copy.
  Size read_of(ValueId id) const {
    const auto expands = [&](const Operation& of) {
      return of.out == id && of.kind == Kind::expand;
    };
    return f_.value(std::ranges::any_of(f_.operations(), expands) ? f_.value(id).storage : id).size;
  }
  void moves(Size size, bool launches) {
    script_.moved.push_back({script_.steps.size(), size, launches});
  }

  const Function& f_;
  Script script_;
  std::vector<std::int16_t> block_;  // by storage, while it is there
  std::vector<int> last_use_;
  std::vector<bool> stays_;
  int left_ = -2;  // the last operation that was a frame's return
};

}  // namespace

void Script::part(const Function& function, const Operation& operation) {
  steps.push_back({Step::What::node, -1, static_cast<std::int16_t>(parts.size())});
  parts.push_back({function.parts_operations() ? operation.out : kNone,
                   function.is_fused(operation.kind), operation.compiled, operation.out});
}

// Operands are packed before an operation runs, results after. Where it stops, frames return too.
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
