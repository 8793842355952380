// The functions of NCCL that are used, loaded with the first of them.
#pragma once

#include <nccl.h>

#include "kernels/cuda/loaded_library.h"

namespace plimsoll::runtime::comm::nccl {

inline const kernels::cuda::LoadedLibrary library("libnccl.so." + std::to_string(NCCL_MAJOR));
template <class Function>
using Loaded = kernels::cuda::LoadedFunction<Function>;

inline const Loaded<decltype(ncclAllGather)> all_gather(library, "ncclAllGather");
inline const Loaded<decltype(ncclAllReduce)> all_reduce(library, "ncclAllReduce");
inline const Loaded<decltype(ncclBroadcast)> broadcast(library, "ncclBroadcast");
inline const Loaded<decltype(ncclCommAbort)> comm_abort(library, "ncclCommAbort");
inline const Loaded<decltype(ncclCommGetAsyncError)> comm_get_async_error(library,
                                                                          "ncclCommGetAsyncError");
inline const Loaded<decltype(ncclCommInitRankConfig)> comm_init_rank_config(
    library, "ncclCommInitRankConfig");
inline const Loaded<decltype(ncclCommSplit)> comm_split(library, "ncclCommSplit");
inline const Loaded<decltype(ncclGetErrorString)> get_error_string(library, "ncclGetErrorString");
inline const Loaded<decltype(ncclGetLastError)> get_last_error(library, "ncclGetLastError");
inline const Loaded<decltype(ncclGetUniqueId)> get_unique_id(library, "ncclGetUniqueId");
inline const Loaded<decltype(ncclGetVersion)> get_version(library, "ncclGetVersion");
inline const Loaded<decltype(ncclGroupEnd)> group_end(library, "ncclGroupEnd");
inline const Loaded<decltype(ncclGroupStart)> group_start(library, "ncclGroupStart");
inline const Loaded<decltype(ncclRecv)> recv(library, "ncclRecv");
inline const Loaded<decltype(ncclReduce)> reduce(library, "ncclReduce");
inline const Loaded<decltype(ncclReduceScatter)> reduce_scatter(library, "ncclReduceScatter");
inline const Loaded<decltype(ncclSend)> send(library, "ncclSend");

}  // namespace plimsoll::runtime::comm::nccl
