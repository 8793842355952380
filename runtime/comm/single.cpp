#include "runtime/comm/communicator.h"

namespace plimsoll::runtime::comm {

namespace {

class Single final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Pending start_all_reduce(TensorView) override { return {}; }
  Pending start_reduce_scatter(TensorView, PieceRange) override { return {}; }
  // Of one rank nothing is sharded, so that its piece is the whole.
  Pending start_all_gather(ConstTensorView piece, TensorView whole) override {
    check(piece.data == whole.data && piece.elements() == whole.elements(), ErrorKind::internal,
          "the piece of a single rank is the whole buffer");
    return {};
  }
  Pending start_broadcast(TensorView, int root) override {
    check(root == 0, ErrorKind::internal, "a single rank is rank 0");
    return {};
  }
  void barrier() override {}
  std::vector<std::string> gather(std::string bytes) override { return {std::move(bytes)}; }
  std::unique_ptr<Communicator> split(int) override { return single_communicator(); }
  // The caller's error ends the process; nobody else is there.
  void abort(const std::string&) noexcept override {}
};

}  // namespace

std::unique_ptr<Communicator> single_communicator() {
  return std::make_unique<Single>();
}

}  // namespace plimsoll::runtime::comm
