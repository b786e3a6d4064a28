"""Test the recognition of NCCL's own kernels, and of its operations by name and by number."""

import pytest

from nsys2prv.events import nccl
from nsys2prv.events.nccl import find_kernel_operation, find_operation, is_nccl_kernel

OF_NCCL = [
    # 2.3 - 2.7
    "ncclAllReduceKernel_sum_f32(ncclColl)",
    "ncclAllReduceLLKernel_sum_f16(ncclColl)",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    "ncclAllReduceRingLLKernel_sum_f32",
    "ncclAllReduceTreeLLKernel_sum_f32(ncclColl)",
    "ncclAllReduceCollNetLLKernel_sum_f64(ncclColl)",
    "ncclBroadcastRingLLKernel_copy_i8(ncclColl)",
    "ncclAllGatherRingLL128Kernel_copy_i8(ncclColl)",
    "ncclReduceRingLLKernel_max_i64(ncclColl)",
    "ncclReduceScatterRingLLKernel_sum_f16(ncclColl)",
    "ncclSendRecvKernel_copy_i8(ncclColl)",
    "ncclMultiOpKernel(ncclColl)",
    # 2.8 - 2.18
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm *, ncclWorkElem)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm *, unsigned long, ncclWork *)",
    # 2.19 and later
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_Generic",
    "ncclDevKernel_ReduceScatter_Sum_f32_...",
    "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    "void oneRankReduce<FuncPreMulSum<float>>(void *, void *, unsigned long, unsigned long, bool)",
    "void <unnamed>::oneRankReduce<FuncPreMulSum<__half>>(void *, void *, unsigned long, unsigned long, bool)",
    "void (anonymous namespace)::oneRankReduce<FuncPreMulSum<__half> >(void*, void*, unsigned long)",
    "oneRankReduce",
    # symmetric memory, device-side network
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_Sum_f32(ncclSymDevArgs)",
    "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgsStorage<(unsigned long)4096>)",
    "ncclDevKernelGinResetSignalsAndCounters(ncclDevComm)",
]

NOT_OF_NCCL = [
    "",
    "nccl",
    "my_nccl_helper_kernel(float *, int)",
    "ncclHelper(float *)",
    "nccl_my_kernel(float *)",
    "ncclKernel",
    "ncclTestKernel(float *)",
    "ncclDevFunc_AllReduce_RING_LL_Sum_f32()",
    "verify_ncclDevKernel_AllReduce(float *)",
    "void foo<ncclDataType_t>(int)",
    "void foo<(ncclRedOp_t)0>(float *, ncclDevKernel_AllReduce_args *)",
    "void ns::ncclKernel_wrapper::run<float>(int)",
    "mylib::ncclDevKernel_AllReduce(int)",
    "void at::native::vectorized_elementwise_kernel<(int)4, nccl::Functor<float>>(int, T2, T3)",
    "void oneRankReducer<float>(int)",
    "oneRankReduceHelper",
    "_Z21my_nccl_helper_kernelPfi",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *)",
    "triton_poi_fused_nccl_0",
]


@pytest.mark.parametrize("name", OF_NCCL)
def test_kernels_of_nccl(name: str) -> None:
    assert is_nccl_kernel(name)


@pytest.mark.parametrize("name", NOT_OF_NCCL)
def test_other_kernels(name: str) -> None:
    assert not is_nccl_kernel(name)


#: Functions of NCCL's API, and their values, which are fixed for ever.
FUNCTIONS = {
    "ncclAllReduce": 1,
    "ncclBroadcast": 2,
    "ncclBcast": 2,
    "ncclReduce": 3,
    "ncclAllGather": 4,
    "ncclReduceScatter": 5,
    "ncclSend": 6,
    "ncclRecv": 7,
    "ncclAlltoAll": 8,
    "ncclGather": 9,
    "ncclScatter": 10,
    "ncclPutSignal": 11,
    "ncclSignal": 12,
    "ncclWaitSignal": 13,
    "ncclGroupStart": 21,
    "ncclGroupEnd": 22,
    "ncclCommInitRank": 30,
    "ncclCommInitAll": 31,
    "ncclCommInitRankConfig": 32,
    "ncclCommInitRankScalable": 33,
    "ncclCommSplit": 34,
    "ncclCommShrink": 35,
    "ncclCommGrow": 36,
    "ncclCommFinalize": 37,
    "ncclCommDestroy": 38,
    "ncclCommAbort": 39,
    "ncclCommRevoke": 40,
}


def test_functions_have_their_values() -> None:
    assert {name: find_operation(name) for name in FUNCTIONS} == FUNCTIONS
    assert {name: find_operation(name.removeprefix("nccl")) for name in FUNCTIONS} == FUNCTIONS
    assert [
        find_operation(name)
        for name in ("ncclGetUniqueId", "", "Several operations in a group", "gather")
    ] == [0, 0, 0, 9]
    assert (
        find_kernel_operation("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        == nccl.SEND_RECEIVE
        == 15
    )
