#include "runtime/worker.h"

namespace plimsoll::runtime {

TensorView Worker::scratch(DType dtype, Extents shape) {
  return scratch_after(Bytes(0), dtype, shape);
}

TensorView Worker::scratch_after(Bytes used, DType dtype, Extents shape) {
  const Bytes need = used + storage(Count(shape.elements()), dtype);
  check(need <= workspace.bytes() || need == used, ErrorKind::internal, [&] {
    return "op " + memory.ledger().op_name() + " needs " + std::to_string(need.value()) +
           " B of workspace, of which there are " + std::to_string(workspace.bytes().value());
  });
  if (need == used) return {};
  return {static_cast<std::byte*>(workspace.view().data) + used.value(), dtype, shape};
}

HostOp::HostOp(Worker& worker, const char* name) : memory_(*worker.host_memory) {
  memory_.ledger().begin_op(worker.prefix + name, worker.phase);
}

Op::Op(Worker& worker, const char* name, Phase phase) : worker_(worker) {
  worker.memory.ledger().begin_op(worker.prefix + name, phase);
}

Op::~Op() {
  consumed_.clear();
  worker_.memory.ledger().end_op();
}

Tensor Op::make(const char* name, Category category, DType dtype, Extents shape) {
  return worker_.memory.allocate(worker_.prefix + name, category, dtype, shape);
}

}  // namespace plimsoll::runtime
