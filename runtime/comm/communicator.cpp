#include "runtime/comm/communicator.h"

#include <cstring>

namespace plimsoll::runtime::comm {

namespace {

template <class View>
View slice_of(View flat, std::int64_t first, std::int64_t count) {
  return flat.as({flat.elements()}).rows(first, count);
}

template <class View>
View equal_piece(View whole, std::int64_t pieces, std::int64_t index) {
  const std::int64_t elements = whole.elements();
  check(pieces > 0 && elements % pieces == 0, ErrorKind::internal, [&] {
    return std::to_string(elements) + " elements are not " + std::to_string(pieces) +
           " equal pieces";
  });
  return slice_of(whole, index * (elements / pieces), elements / pieces);
}

}  // namespace

TensorView slice(TensorView flat, std::int64_t first, std::int64_t count) {
  return slice_of(flat, first, count);
}
ConstTensorView slice(ConstTensorView flat, std::int64_t first, std::int64_t count) {
  return slice_of(flat, first, count);
}
TensorView piece_of(TensorView whole, std::int64_t pieces, std::int64_t index) {
  return equal_piece(whole, pieces, index);
}
ConstTensorView piece_of(ConstTensorView whole, std::int64_t pieces, std::int64_t index) {
  return equal_piece(whole, pieces, index);
}

void Communicator::reduce_scatter(TensorView whole) {
  start_reduce_scatter(whole, {0, piece_of(whole, size(), rank()).elements()}).wait();
}

void Communicator::all_gather(TensorView whole) {
  all_gather(piece_of(whole, size(), rank()), whole);
}

std::vector<double> Communicator::gather(double value) {
  std::vector<double> values;
  for (const std::string& bytes :
       gather(std::string(reinterpret_cast<const char*>(&value), sizeof value))) {
    check(bytes.size() == sizeof value, ErrorKind::communicator, "all ranks gather one number");
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof value);
  }
  return values;
}

}  // namespace plimsoll::runtime::comm
