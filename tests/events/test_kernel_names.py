"""Labels of CUDA kernels."""

from __future__ import annotations

import random
import time

import pytest
from tools.corpus import read_rows_from_corpus

from nsys2prv.events.kernel_names import make_kernel_label, make_labels_unique

# demangled name -> label
LABELS = {
    # plain functions
    "saxpy": "saxpy",
    "saxpy(double *, double *, double *, double, int)": "saxpy",
    "jacobi_kernel(float *, const float *, float *, int, int, int)": "jacobi_kernel",
    "kernel_assign_clusters(const GPU::VecArray<int, (int)100000> *, PointsPtr, int)": "kernel_assign_clusters",
    "tensorflow::functor::ReluGradHalfKernelVector(const Eigen::half *, Eigen::half *, int)": "ReluGradHalfKernelVector",
    "<unnamed>::nvfuser_none_f0_c0_r0_g0(<unnamed>::Tensor<<unnamed>::__half, (int)3, (int)3>, <unnamed>::TensorMap)": (
        "nvfuser_none_f0_c0_r0_g0"
    ),
    # names by compilers and code generators
    "nvkernel_matmult_mkn_offload_F1L85_3": "nvkernel_matmult_mkn_offload_F1L85_3",
    "__omp_offloading_fd00_2a1b_main_l42": "__omp_offloading_fd00_2a1b_main_l42",
    "main_53_gpu__red": "main_53_gpu__red",
    "julia_gpu_vadd_1234": "julia_gpu_vadd_1234",
    "_Z24julia_vadd_1234_13CuDeviceArrayI7Float32Li1ELi1EE": "_Z24julia_vadd_1234_13CuDeviceArrayI7Float32Li1ELi1EE",
    "cudapy::__main__::matmul$241(Array<double, 2, C, mutable, aligned>, Array<double, 2, C, mutable, aligned>)": (
        "matmul$241"
    ),
    "cudapy::__main__::add_kernel[abi:v1][abi:cw51cXTLSUwv1kAcVu](Array<float, 1, C, mutable, aligned>)": "add_kernel",
    "loop_add_fusion_12": "loop_add_fusion_12",
    "triton_poi_fused_add_addmm_gelu_mul_0": "triton_poi_fused_add_addmm_gelu_mul_0",
    "_moe_partial_reduce.kd": "_moe_partial_reduce.kd",
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN": "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": (
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    ),
    # template arguments of the user's own
    "void dag_lts_kernel<(int)1, (int)128>(const int *, const int *, double *, const int *, int)": "dag_lts_kernel<1,128>",
    "void build_GPU2<128, 4>(int*, int*, int*, int, int, int, short*)": "build_GPU2<128,4>",
    "void softmax_warp<float, (bool)1, (bool)0, 128ul, true>(T1 *)": "softmax_warp<float,1,0,128,1>",
    "void my::ns::k<std::array<double, 3>, Tensor<float>>(int)": "k<array<double,3>,Tensor<float>>",
    "void k<unsigned long long, unsigned char const*, float (*)(float, float)>(int)": (
        "k<unsigned long long,unsigned char*,float>"
    ),
    "bool mylib::Foo<float, 3>::kernel(int)": "Foo<float,3>::kernel",
    "mylib::kernel(int)": "mylib::kernel",
    "void mylib::operator_kernel<int>(T1)": "operator_kernel<int>",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, (bool)1, (bool)1, (cudnnKernelDataType_t)0>(const T1 *)": (
        "nchwToNhwcKernel<__half,__half,float,1,1,0>"
    ),
    # return types that are larger than the name
    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __half, __half, __half, float, (bool)0, (int)7, "
    "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<const __half>, cublasGemvTensorStridedBatched<__half>, "
    "float>>(T9)": "gemvx::kernel<int,int,__half,__half,__half,float,0,7,cublasGemvParamsEx>",
    "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused_add_rms_norm_kernel<"
    "c10::BFloat16, (int)8>(T1 *, T1 *, const T1 *, float, int, int)": "fused_add_rms_norm_kernel<BFloat16,8>",
    # PyTorch
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, "
    "std::array<char *, (unsigned long)3>>(int, T2, T3)": "vectorized_elementwise_kernel<CUDAFunctor_add<float>>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)": (
        "vectorized_elementwise_kernel<CUDAFunctor_add<float>>"
    ),
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>) [clone .kd]": (
        "vectorized_elementwise_kernel<CUDAFunctor_add<BFloat16>>"
    ),
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase &, "
    "at::native::GeluType)::[lambda() (instance 2)]::operator ()() const::[lambda() (instance 4)]::operator ()() const::"
    "[lambda(c10::BFloat16) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)": (
        "vectorized_elementwise_kernel<GeluCUDAKernelImpl#2(BFloat16)>"
    ),
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, "
    "std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::"
    "{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>)": (
        "vectorized_elementwise_kernel<GeluCUDAKernelImpl(float)>"
    ),
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
    "float, float, float, at::native::binary_internal::MulFunctor<float>>>(at::TensorIteratorBase &, const T1 &)::"
    "[lambda(int) (instance 1)]>(int, T3)": "elementwise_kernel<BinaryFunctor<float,MulFunctor<float>>>",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::"
    "[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, "
    "unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, "
    "at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)": (
        "unrolled_elementwise_kernel<direct_copy_kernel_cuda#3(float)>"
    ),
    "void at::native::vectorized_elementwise_kernel<(int)4, void at::native::<unnamed>::pow_tensor_scalar_kernel_impl<float, "
    "float>(at::TensorIteratorBase &, T2)::[lambda(float) (instance 2)], std::array<char *, (unsigned long)2>>(int, T2, T3)": (
        "vectorized_elementwise_kernel<pow_tensor_scalar_kernel_impl<float>#2>"
    ),
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, "
    "float>, unsigned int, float, (int)4, (int)4>>(T3)": "reduce_kernel<MeanOps<float>>",
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)::[lambda(float, float) (instance 1)]>, "
    "unsigned int, float, (int)4>>(T3)": "reduce_kernel<sum_functor<float>>",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>,"
    " at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)": (
        "multi_tensor_apply_kernel<BinaryOpListAlphaFunctor<float,2,2,0>,plus<float>,float>"
    ),
    "void multi_tensor_apply_kernel<TensorListMetadata<(int)4>, AdamFunctor<float, float, int>, float, adamMode_t>(long)": (
        "multi_tensor_apply_kernel<AdamFunctor<float,float,int>,float,adamMode_t>"
    ),
    # inference engines and attention
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)": (
        "act_and_mul_kernel<BFloat16,silu_kernel<BFloat16>,1>"
    ),
    "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, (int)128, (vllm::Fp8KVCacheDataType)0>(T1 *)": (
        "paged_attention_v2_kernel<unsigned short,unsigned short,128,0>"
    ),
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0, (bool)0, cutlass::bfloat16_t, "
    "Flash_kernel_traits<(int)128, (int)128, (int)64, (int)4, cutlass::bfloat16_t>>, (bool)0, (bool)1, (bool)0>"
    "(Flash_fwd_params)": "flash_fwd_kernel<Flash_fwd_kernel_traits<128,128,64,4,0,0,bfloat16_t>,0,1,0>",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<(int)2, "
    "cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::tuple<cute::C<(int)128>, cute::C<(int)176>, "
    "cute::C<(int)128>>, (int)128, cutlass::half_t, float, cutlass::arch::Sm90, (bool)1>>>>(T1::Params)": (
        "FlashAttnFwdSm90<CollectiveMainloopFwdSm90<2,1x1x1,128x176x128,128,half_t,float,Sm90,1>>"
    ),
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true, "
    "64>::Params)": "fmha_cutlassF_f32_aligned_64x64_rf_sm80",
    # CUTLASS
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x5_tn_align8>(T1::Params)": (
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x5_tn_align8"
    ),
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
    "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<(int)4, cute::tuple<"
    "cute::C<(int)2>, cute::C<(int)1>, cute::C<(int)1>>, Pingpong>, cute::tuple<cute::C<(int)128>, cute::C<(int)128>, "
    "cute::C<(int)64>>, cutlass::bfloat16_t, cute::tuple<long, cute::C<(int)1>, long>>, void, void>>(T1::Params)": (
        "GemmUniversal<CollectiveMma<MainloopSm90TmaGmmaWarpSpecialized<4,2x1x1,Pingpong>,128x128x64,bfloat16_t>>"
    ),
    # CUB and Thrust
    "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float, int, cub::Sum>::Policy600, float *, int, cub::Sum, float>"
    "(T2, T5 *, T3, cub::GridEvenShare<T3>, T4)": "DeviceReduceKernel<float*,int,Sum,float>",
    "void cub::CUB_200200_800_NS::DeviceRadixSortHistogramKernel<cub::CUB_200200_800_NS::DeviceRadixSortPolicy<unsigned long, "
    "cub::CUB_200200_800_NS::NullType, unsigned int>::Policy900, (bool)0, unsigned long, unsigned int, "
    "cub::CUB_200200_800_NS::detail::identity_decomposer_t>(T4 *, const T3 *, T4, int, int, T5)": (
        "DeviceRadixSortHistogramKernel<0,unsigned long,unsigned int>"
    ),
    "void cub::CUB_200802_SM_900::EmptyKernel<void>()": "EmptyKernel",
    "void cub::CUB_200700_750_NS::detail::for_each::static_kernel<cub::CUB_200700_750_NS::detail::for_each::policy_hub_t::"
    "policy_350_t, long, thrust::THRUST_200700_750_NS::cuda_cub::__uninitialized_fill::functor<"
    "thrust::THRUST_200700_750_NS::device_ptr<float>, float>>(T2, T3)": (
        "static_kernel<long,__uninitialized_fill::functor<float*,float>>"
    ),
    "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::for_each_f<"
    "thrust::detail::normal_iterator<thrust::device_ptr<float>>, thrust::detail::wrapped_function<my_functor, void>>, long>, "
    "long>(T2, T3)": "ParallelForAgent<for_each_f<float*,wrapped_function<my_functor>>,long>",
    # TensorFlow and Eigen
    "void tensorflow::GatherOpKernel<tensorflow::AlignedVector<float, (int)1>, int, (bool)1, (bool)0>(const T1 *)": (
        "GatherOpKernel<AlignedVector<float,1>,int,1,0>"
    ),
    "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<const Eigen::TensorAssignOp<Eigen::TensorMap<Eigen::Tensor<"
    "Eigen::half, (int)1, (int)1, int>, (int)16, Eigen::MakePointer>, const Eigen::TensorCwiseUnaryOp<"
    "Eigen::internal::scalar_right<Eigen::half, Eigen::half, Eigen::internal::scalar_pow_op<Eigen::half, Eigen::half>, (bool)0>, "
    "const Eigen::TensorMap<Eigen::Tensor<const Eigen::half, (int)1, (int)1, int>, (int)16, Eigen::MakePointer>>>, "
    "Eigen::GpuDevice>, int>(T1, T2)": "EigenMetaKernel<pow_right(Tensor<half,1>),int>",
    # frameworks that launch the user's lambda
    "void clover::par_ranged1d_kernel<update_halo_kernel(int, const std::array<int, (unsigned long)4> &, field_type &)::"
    "[lambda(int) (instance 7)]>(clover::Range1d, T1)": "par_ranged1d_kernel<update_halo_kernel#7>",
    "void mfem::CuKernel1D<mfem::SparseMatrix::BooleanMult(const mfem::Array<int> &, mfem::Array<int> &) const::"
    "[lambda(int) (instance 1)]>(int, T1)": "CuKernel1D<SparseMatrix::BooleanMult>",
    "void Kokkos::Impl::cuda_parallel_launch_constant_memory<Kokkos::Impl::ParallelReduce<Kokkos::Impl::CombinedFunctorReducer<"
    "LAMMPS_NS::PairLJCutKokkos<Kokkos::Cuda>::compute(int, int)::[lambda(const int &, double &) (instance 2)], "
    "Kokkos::Impl::FunctorAnalysis<double>, void>, Kokkos::RangePolicy<Kokkos::Cuda>, Kokkos::Cuda>>()": (
        "ParallelReduce<PairLJCutKokkos::compute#2>"
    ),
    "void RAJA::policy::cuda::impl::forall_cuda_kernel<RAJA::policy::cuda::cuda_exec_explicit<RAJA::iteration_mapping::Direct>, "
    "(unsigned long)1, RAJA::Iterators::numeric_iterator<long, long, long *>, void rajaperf::apps::ENERGY::runCudaVariantImpl<"
    "(unsigned long)128>(rajaperf::VariantID)::[lambda() (instance 1)]::operator ()() const::[lambda(long) (instance 4)], long>"
    "(T4, T3, T5)": "forall_cuda_kernel<ENERGY::runCudaVariantImpl<128>#1.4>",
    "void amrex::launch_global<(int)256, void amrex::ParallelFor<(int)256, int, WarpX::EvolveB(int, double)::"
    "[lambda(int, int, int) (instance 3)], void>(const amrex::Gpu::KernelInfo &, const amrex::Box &, T3 &&)::"
    "[lambda() (instance 1)]>(T2)": "ParallelFor<WarpX::EvolveB#3>",
    "void amrex::launch_global<Operator::Elastic<(int)1>::Fapply(int)::[lambda(int)]>()": "Elastic<1>::Fapply",
    "void gko::kernels::cuda::generic_kernel_1d<gko::kernels::cuda::dense::fill<double>(gko::matrix::Dense<double>*, double)::"
    "{lambda(auto:1, auto:2)#1}>(long)": "generic_kernel_1d<dense::fill<double>>",
    "void run<__nv_dl_wrapper_t<__nv_dl_tag<void (*)(at::Tensor&, double), &(void foo::bar<int>(at::Tensor&, double)), 3u>, "
    "float> >(int)": "run<bar<int>#3>",
    # communication
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    ),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, int)": (
        "cross_device_reduce_1stage<__nv_bfloat16,2>"
    ),
}

HOSTILE = [
    "",
    " ",
    "\n",
    "\t<\n>",
    "<",
    ">",
    "((((",
    "))))",
    "::",
    "[",
    "[]",
    "[[x]]",
    "[CUDA memcpy]",
    "<unnamed>",
    "(anonymous namespace)::",
    "operator()",
    "operator<<(int)",
    "f\nbar<int>(\tint)",
    "line\u2028separator\x85",
    "\ud800\udfff\x00<a>(",
    "[lambda() (instance 99999999999999999999)]",
    "f(a)::'lambda99999999999999999999'(int)",
    "$_" + "9" * 10_000,
    "a" * 1_000_000,
    "a<" * 500_000,
    "a<b,(" * 200_000,
    "<(" * 500_000,
    "(" * 1_000_000,
    ")" * 1_000_000,
    "f<int>::" * 100_000 + "g",
    "(w)" * 300_000 + "1",
    "(w w" * 250_000,
    "operator" + " " * 1_000_000,
    "cutlass::Kernel<>()",
    "cutlass::Kernel<void>(x)",
    "cub::Policy<int>()",
    "Eigen::TensorCwiseUnaryOp<>()",
    "std::integral_constant<int>()",
    "__nv_dl_wrapper_t<__nv_dl_tag<a, b, c>>()",
]


def is_label(label: str) -> bool:
    return (
        0 < len(label) <= 120
        and label.isprintable()
        and label == label.strip()
        and not (label.startswith("[") and label.endswith("]"))
    )


@pytest.mark.parametrize(("demangled", "label"), LABELS.items())
def test_label(demangled: str, label: str) -> None:
    assert make_kernel_label(demangled, "short") == label


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:24]))
def test_odd_names_have_a_label_soon(name: str) -> None:
    begin = time.perf_counter()
    labels = [make_kernel_label(name, short) for short in ("", "short", name)]
    assert time.perf_counter() - begin < 1
    assert all(is_label(label) for label in labels)


def test_damaged_names_have_a_label() -> None:
    chance = random.Random(1)
    names = list(LABELS)
    for _ in range(5_000):
        name = chance.choice(names)
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(name) + 1)
            name = (
                name[:at]
                + chance.choice(("", *"<>()[]{}:,*& #'$", chance.choice(names)[:40]))
                + name[at + 3 :]
            )
        assert is_label(make_kernel_label(name, "")), name


def test_without_demangled_name_the_short_one_serves() -> None:
    assert make_kernel_label("", "saxpy") == "saxpy"
    assert make_kernel_label("", "") == "unnamed kernel"


def test_the_whole_name_goes_before_a_short_one_that_was_cut() -> None:
    name = "_ZN10tensorflow67_GLOBAL__N__c6b73f6f_27_check_numerics_op_gpu_cu_cc_020c7bc0_10225319CheckNumericsKernelIfEEvPKT_iPi"
    assert make_kernel_label(name, "_ZN10tensorflow67_GLOBAL__N__c_3...") == name


def test_long_names_end_in_an_ellipsis() -> None:
    name = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_"
    label = make_kernel_label(name + "tensor16x8x16_t1r1s1_kernel_cudnn", "")
    assert label == name + "tensor16x..."


def test_long_template_arguments_are_told_in_outline() -> None:
    inner = "std::map<unsigned long long, std::vector<std::complex<double>, my_allocator<double>>, comparator<int>>"
    label = make_kernel_label(f"void k<{inner}, {inner}, (int)3>(int)", "k")
    assert (
        label
        == "k<map<unsigned long long,vector,comparator>,map<unsigned long long,vector,comparator>,3>"
    )


ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int){width}, at::native::FillFunctor<{type}>, "
    "{array}<char *, (int)1>>(int, T2, T3)"
)


def number_equal_names(*names: str) -> list[str]:
    return make_labels_unique([make_kernel_label(name, "") for name in names], names)


def test_labels_that_do_not_collide_stay() -> None:
    assert number_equal_names("a(int)", "b(int)", "c<int>(T1)") == ["a", "b", "c<int>"]


def test_collisions_get_the_arguments_that_differ() -> None:
    first = ELEMENTWISE.format(width=4, type="float", array="std::array")
    wider = ELEMENTWISE.format(width=8, type="float", array="std::array")
    older = ELEMENTWISE.format(width=4, type="float", array="at::detail::Array")
    label = "vectorized_elementwise_kernel<FillFunctor<float>>"
    assert number_equal_names(first, wider) == [f"{label} <4>", f"{label} <8>"]
    assert number_equal_names(older, first) == [
        f"{label} <Array<char*,1>>",
        f"{label} <array<char*,1>>",
    ]
    assert make_labels_unique(["k", "k"], ["void k<float>(T1)", "void k<double>(T1)"]) == [
        "k <float>",
        "k <double>",
    ]


def test_collisions_get_parameters_or_namespaces_if_those_differ() -> None:
    assert number_equal_names(
        "add(float *, float *, float *, int)", "add(int, float *, float *)"
    ) == [
        "add (float*,float*,float*,int)",
        "add (int,float*,float*)",
    ]
    assert number_equal_names("ours::step(int)", "theirs::step(int)") == [
        "step <ours>",
        "step <theirs>",
    ]
    assert number_equal_names("step(float *)", "step(double *)") == [
        "step <float*>",
        "step <double*>",
    ]


def test_collisions_without_a_telling_difference_are_numbered() -> None:
    names = ["k<<", "k<", "k<<<"]
    assert make_labels_unique(["k"] * 3, names) == ["k #2", "k #1", "k #3"]


def test_a_new_label_does_not_meet_an_old_one() -> None:
    labels = make_labels_unique(
        ["k", "k", "k <float>"], ["void k<float>(T1)", "void k<double>(T1)", "other"]
    )
    assert labels[2] == "k <float>"
    assert len(set(labels)) == 3


def test_the_same_kernel_twice_has_one_label() -> None:
    assert make_labels_unique(["k", "k", "k"], ["k(int)", "k(float)", "k(int)"]) == [
        "k <int>",
        "k <float>",
        "k <int>",
    ]


def test_order_does_not_matter() -> None:
    names = [
        ELEMENTWISE.format(width=width, type=kind, array=array)
        for width in (2, 4, 8)
        for kind in ("float", "c10::Half")
        for array in ("std::array", "at::detail::Array")
    ]
    expected = dict(zip(names, make_labels_unique(["k"] * len(names), names), strict=True))
    assert len(set(expected.values())) == len(names)
    chance = random.Random(2)
    for _ in range(20):
        chance.shuffle(names)
        assert make_labels_unique(["k"] * len(names), names) == [expected[name] for name in names]


@pytest.fixture(scope="module")
def corpus() -> list[tuple[str, str]]:
    """Return demangled and short name of every kernel of the corpus."""
    query = (
        "SELECT DISTINCT whole.value, brief.value FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel"
        " JOIN StringIds AS whole ON whole.id = kernel.demangledName"
        " JOIN StringIds AS brief ON brief.id = kernel.shortName"
    )
    return sorted(dict(read_rows_from_corpus(query)).items())


def test_corpus_labels(corpus: list[tuple[str, str]]) -> None:
    for demangled, short in corpus:
        assert is_label(make_kernel_label(demangled, short)), demangled


def test_corpus_kernels_are_told_apart(corpus: list[tuple[str, str]]) -> None:
    names = [demangled for demangled, _ in corpus]
    labels = [make_kernel_label(demangled, short) for demangled, short in corpus]
    assert len(set(labels)) >= 0.95 * len(names)
    assert len(set(make_labels_unique(labels, names))) == len(names)
    by_short_name = make_labels_unique([short for _, short in corpus], names)
    assert len(set(by_short_name)) == len(names)
