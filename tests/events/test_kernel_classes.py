"""Classes of kernels, told from their names: real names, rules of users, names that mean harm, and
every name of the corpus.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from events.test_nccl_names import NOT_OF_NCCL, OF_NCCL
from hypothesis import given
from hypothesis import strategies as st
from tools.corpus import read_rows_from_corpus
from tools.exports import KERNEL, make_export, make_kernel, make_strings
from tools.trace_reader import Trace, read_trace

from nsys2prv import Options, convert
from nsys2prv._util.data_files import read_data_text
from nsys2prv._util.errors import Nsys2prvError
from nsys2prv.cli import main
from nsys2prv.events.catalogue import load_catalogue
from nsys2prv.events.kernel_classes import (
    Classifier,
    _find_required_words,
    _lower_pattern,
    _search,
    is_nccl_kernel,
    load_rules,
    normalize_name,
    read_rules,
)

SAMPLES = Path(__file__).parents[2] / "sample_reports"
KERNEL_TYPES, CLASS, TENSOR, SHAPE = (63000006, 63000007), 63000060, 63000061, 63000062
LABELS = {
    code: dict(load_catalogue().value_sets[name].labels)
    for code, name in ((CLASS, "kernel_class"), (TENSOR, "tensor_cores"))
}
SHIPPED = Classifier(load_rules())

GEMM, ATTENTION, CONVOLUTION, NORM, SOFTMAX = (
    "GEMM",
    "Attention",
    "Convolution",
    "Normalisation",
    "Softmax",
)
REDUCTION, ELEMENTWISE, COPY, OPTIMIZER = "Reduction", "Element-wise", "Copy/index", "Optimizer"
COMMUNICATION, OTHER = "Communication", "Other"
YES, NO, UNKNOWN = "Yes", "No", "Unknown"

GEMMS = {
    # nvjet: cuBLASLt of CUDA 12 and later
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN": (YES, "tnn 192x192x64"),
    "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT": (YES, "ntt 256x128x64"),
    "nvjet_tst_64x8_64x16_2x4_h_bz_splitK_TNT": (YES, "tnt 64x8x64"),
    "nvjet_sm90_tst_384x80_64x3_4x1_v_bz_coopA_TNT": (YES, "tnt 384x80x64"),
    "nvjet_sm100_tst_256x128_64x5_2x2_2cta_h_bz_TNT": (YES, "tnt 256x128x64"),
    "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT": (YES, "tnt 128x256x128"),
    "nvjet_qqtst_112x128_128x7_2x1_v_bz_coopA_algo2_TNN": (YES, "tnn 112x128x128"),
    "nvjet_tst_256x152_64x4_2x1_v_bz_coopA_bias_TNN": (YES, "tnn 256x152x64"),
    # XMMA
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas": (
        NO,
        "tn 64x256x8",
    ),
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_split_k_kernel__5x_cublas": (
        NO,
        "nn 32x32x8",
    ),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas": (
        YES,
        "tn 128x128x64",
    ),
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16_execute_kernel_trt": (
        YES,
        "tn 32x32x64",
    ),
    "sm80_xmma_gemm_f64f64_f64f64_f64_nt_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor8x8x4_execute_kernel__5x_cublas": (
        YES,
        "nt 64x64x16",
    ),
    # cuBLAS before
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn": (YES, "nn 128x128x32"),
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn": (
        YES,
        "tn 64x64x64",
    ),
    "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn": (YES, "nn 128x128x32"),
    "turing_h1688gemm_128x128_ldg8_nn": (YES, "nn 128x128"),
    "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nt": (YES, "nt 128x64"),
    "ampere_fp16_sgemm_fp16_128x64_tn": (NO, "tn 128x64"),
    "ampere_sgemm_128x64_nt": (NO, "nt 128x64"),
    "volta_sgemm_32x32_sliced1x4_tn": (NO, "tn 32x32"),
    "volta_gcgemm_32x32_nt": (NO, "nt 32x32"),
    "volta_cgemm_32x32_tn": (NO, "tn 32x32"),
    "maxwell_sgemm_128x64_raggedMn_nn": (NO, "nn 128x64"),
    # CUTLASS, named by its generator
    "void cutlass::Kernel<cutlass_75_tensorop_f16_s1688gemm_f16_128x256_tn_align1>(T1::Params)": (
        YES,
        "tn 128x256",
    ),
    "void cutlass::Kernel<cutlass_75_wmma_tensorop_s161616gemm_f16_16x16_128x1_nn_align1>(T1::Params)": (
        YES,
        "nn 16x16x128",
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nt_align8>(T1::Params)": (
        YES,
        "nt 256x128x32",
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(T1::Params)": (
        YES,
        "tn 128x64x64",
    ),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(T1::Params)": (
        NO,
        "tn 64x64x8",
    ),
    "void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_"
    "warpspecialized_cooperative_epi_tma>(T1::Params)": (YES, "tnn 128x128x64"),
    "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu": (
        NO,
        "tnn 128x64x16",
    ),
    "_ZN7cutlass7KernelI66cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4EEvNT_6ParamsE": (
        YES,
        "tn 128x128x16",
    ),
    # CUTLASS, spelt out
    "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaPipelined<cutlass::gemm::GemmShape<(int)128, (int)128, "
    "(int)32>, cutlass::transform::threadblock::PredicatedTileIterator<cutlass::MatrixShape<(int)128, (int)32>, float, "
    "cutlass::layout::RowMajor, (int)1>, cutlass::layout::RowMajorTensorOpMultiplicandCrosswise<(int)16, (int)32>>>>(T1::Params)": (
        YES,
        "128x128x32",
    ),
    "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaPipelined<cutlass::gemm::GemmShape<int=128,int=128,"
    "int=8>,cutlass::transform::threadblock::TransposePitchLinearThreadMapSimt<int=1>>>>(T1::Params)": (
        NO,
        "128x128x8",
    ),
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, "
    "int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<(int)6, cute::tuple<cute::C<(int)2>, "
    "cute::C<(int)1>, cute::C<(int)1>>, cutlass::gemm::KernelTmaWarpSpecializedCooperative>, cute::tuple<cute::C<(int)128>, cute::C<(int)256>, "
    "cute::C<(int)64>>, cutlass::bfloat16_t, cute::tuple<long, cute::C<(int)1>, long>>>>>(T1::Params)": (
        YES,
        "128x256x64",
    ),
    "void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t, cutlass::bfloat16_t, vllm::c3x::ScaledEpilogue, "
    "cute::tuple<cute::C<64>, cute::C<128>, cute::C<128> >, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, "
    "cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum>::GemmKernel>(T1::Params)": (
        YES,
        "64x128x128",
    ),
    # others
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u, 256u, 128u, 128u>(float*, int*)": (
        YES,
        "",
    ),
    "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, false, 4, 2, false>(int4 const*)": (
        YES,
        "",
    ),
    "void gemmSN_NN_kernel<float, (int)128, (int)2, (int)4, (int)8, (int)3, (int)4, cublasGemvTensorStridedBatched<const float>>(T8)": (
        NO,
        "nn",
    ),
    "void gemv2T_kernel_val<int, int, double, double, double, double, (int)128, (int)16, (int)4, (int)4, (bool)0>(T11, T6, T6)": (
        NO,
        "",
    ),
    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, (bool)0>(T13)": (
        NO,
        "",
    ),
    "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, double, double, double, double, (bool)1>(cublasLt::cublasSplitKParams<T6>)": (
        NO,
        "",
    ),
    "fused_moe_kernel": (UNKNOWN, ""),
    "bmm_Bfloat16_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_sm100f": (UNKNOWN, ""),
    "triton_tem_fused_addmm_0": (UNKNOWN, ""),
    "triton_mm": (UNKNOWN, ""),
    "gemm_fusion_dot_265": (UNKNOWN, ""),
    "tiled_gemm(float *, float *, float *, int, int, int)": (UNKNOWN, ""),
    "cudapy::__main__::matmul$241(Array<double, 2, C, mutable, aligned>, Array<double, 2, C, mutable, aligned>)": (
        UNKNOWN,
        "",
    ),
    "nvkernel_matmult_mkn_offload_F1L85_3": (UNKNOWN, ""),
    "void mul_mat_q<(ggml_type)12, (int)64, (bool)0>(const char *, const int *, float *, int, int, int)": (
        UNKNOWN,
        "",
    ),
}

KERNELS = {
    # attention
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, (bool)0>, (bool)0>(T1)": (
        ATTENTION,
        YES,
    ),
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4>, (bool)1>(flash::Flash_fwd_params)": (
        ATTENTION,
        YES,
    ),
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128>>(T1)": (
        ATTENTION,
        NO,
    ),
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<(int)128, (int)64>>(T1)": (
        ATTENTION,
        YES,
    ),
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<(bool)1, Flash_bwd_kernel_traits<(int)128, (int)64>>(T1)": (
        ATTENTION,
        NO,
    ),
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> > > > > >(T1)": (ATTENTION, YES),
    "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<(int)64>>, cutlass::bfloat16_t>>(T1)": (
        ATTENTION,
        NO,
    ),
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0": (
        ATTENTION,
        YES,
    ),
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)": (
        ATTENTION,
        YES,
    ),
    "fmha_cutlassF_f32_aligned_64x64_rf_sm75": (ATTENTION, NO),
    "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1>>(T1)": (
        ATTENTION,
        YES,
    ),
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, (unsigned int)2>(T1)": (
        ATTENTION,
        NO,
    ),
    "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, (int)128, (int)16, (int)128>(float *)": (
        ATTENTION,
        NO,
    ),
    "void vllm::paged_attention_v2_reduce_kernel<unsigned short, (int)128, (int)128, (int)512>(T1 *)": (
        ATTENTION,
        NO,
    ),
    "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_sm90_kernel": (ATTENTION, YES),
    "_attn_fwd": (ATTENTION, UNKNOWN),
    "triton_tem_fused_flex_attention_0": (ATTENTION, UNKNOWN),
    "kernel_cutlass_kernel_flashinfercute_dslsparsesm120_blk64flash_fwd_sm120BlockSparseAttnForwardSm120Blk64_object_at__": (
        ATTENTION,
        YES,
    ),
    # convolution; the fft2d_ kernels are cuDNN's, cuFFT's are called otherwise
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8": (
        CONVOLUTION,
        YES,
    ),
    "sm80_xmma_dgrad_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x64x8_stage3_warpsize2x2x1_g1_ffma_kernel_cudnn": (
        CONVOLUTION,
        NO,
    ),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x6_nhwc_align4>(T1::Params)": (
        CONVOLUTION,
        YES,
    ),
    "volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1": (CONVOLUTION, YES),
    "trt_turing_h1688cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1": (CONVOLUTION, YES),
    "volta_scudnn_128x32_relu_interior_nn_v1": (CONVOLUTION, NO),
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": (CONVOLUTION, NO),
    "void cudnn::detail::implicit_convolve_sgemm<float, float, (int)1024, (int)5, (int)5, (int)3>(int, int, int, const T1 *)": (
        CONVOLUTION,
        NO,
    ),
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<T1, T2>)": (
        CONVOLUTION,
        NO,
    ),
    "void fft2d_r2c_32x32<float, (bool)0, (unsigned int)5, (bool)1>(float2 *, const T1 *, int, cudnn::reduced_divisor, bool)": (
        CONVOLUTION,
        NO,
    ),
    "void im2col4d_kernel<float, int>(im2col4d_params, cudnnConvolutionStruct, cudnnTensor4dStruct, const T1 *, T1 *, int)": (
        CONVOLUTION,
        NO,
    ),
    "void at::native::<unnamed>::conv_depthwise2d_forward_kernel<(int)3, float, int>(T2)": (
        CONVOLUTION,
        NO,
    ),
    "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<(int)128, (int)4>>(ConvParamsBase)": (
        CONVOLUTION,
        UNKNOWN,
    ),
    # normalisation, softmax
    "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, T2, const T1 *)": (
        NORM,
        NO,
    ),
    "void at::native::<unnamed>::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, (unsigned int)32>(long)": (
        NORM,
        NO,
    ),
    "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, float, int>(T1)": (
        NORM,
        NO,
    ),
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, (int)512, (bool)1, (int)1>(cudnnTensorStruct)": (
        NORM,
        NO,
    ),
    "void transformer_engine::normalization::ln_fwd_tuned_kernel<transformer_engine::normalization::Kernel_traits<float>>(T1)": (
        NORM,
        NO,
    ),
    "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *)": (
        NORM,
        NO,
    ),
    "void flashinfer::norm::RMSNormKernel<(unsigned int)8, __nv_bfloat16>(T2 *, T2 *, T2 *)": (
        NORM,
        NO,
    ),
    "triton_red_fused_native_layer_norm_3": (NORM, NO),
    "layer_norm(float *, float *, float *, float *, int)": (NORM, NO),
    "void <unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)1, (bool)0>(T2 *, const T1 *)": (
        SOFTMAX,
        NO,
    ),
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true, false>(float*, float const*)": (
        SOFTMAX,
        NO,
    ),
    "void at::native::<unnamed>::cunn_SoftMaxForward<(int)8, float, float, float, at::native::LogSoftMaxForwardEpilogue>(T4 *)": (
        SOFTMAX,
        NO,
    ),
    "triton_per_fused__softmax_add_5": (SOFTMAX, NO),
    # reductions, scans and sorts
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>>>(T3)": (
        REDUCTION,
        NO,
    ),
    "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<float, int, cub::Sum>::Policy600, float *, float *, int>(T2)": (
        REDUCTION,
        NO,
    ),
    "void cub::DeviceScanKernel<cub::DeviceScanPolicy<float>::Policy600, float *, float *, cub::ScanTileState<float, (bool)1>>(T2)": (
        REDUCTION,
        NO,
    ),
    "void cub::CUB_200200_800_NS::DeviceRadixSortOnesweepKernel<cub::CUB_200200_800_NS::DeviceRadixSortPolicy<unsigned long>>(T4 *)": (
        REDUCTION,
        NO,
    ),
    "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(T1 *)": (
        REDUCTION,
        NO,
    ),
    "void at::native::sbtopk::gatherTopK<float, unsigned int, (int)2, (bool)0>(at::cuda::detail::TensorInfo<T1, T2>)": (
        REDUCTION,
        NO,
    ),
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)1>, at::native::<unnamed>::"
    "LpNormFunctor<float, (at::native::NormType)1>, float *, int>(T1, T2, T3...)": (REDUCTION, NO),
    "void tensorflow::functor::ColumnReduceSimpleKernel<float *, float *, tensorflow::functor::Sum<float>>(T1, T2, int)": (
        REDUCTION,
        NO,
    ),
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1": (REDUCTION, NO),
    "input_reduce_fusion_92": (REDUCTION, NO),
    "main_53_gpu__red": (REDUCTION, NO),
    "modified_insertion_sort(float *, int, int *, int, int, int, int)": (REDUCTION, NO),
    # element by element
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(int)": (
        ELEMENTWISE,
        NO,
    ),
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)::"
    "[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int)": (
        ELEMENTWISE,
        NO,
    ),
    "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<const Eigen::TensorAssignOp<Eigen::TensorMap<Eigen::Tensor<float>>, const "
    "Eigen::TensorCwiseUnaryOp<Eigen::internal::scalar_exp_op<float>>>, Eigen::GpuDevice>, int>(T1, T2)": (
        ELEMENTWISE,
        NO,
    ),
    "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__transform::"
    "binary_transform_f<thrust::counting_iterator<unsigned long>>, long long>>(T2, T3)": (
        ELEMENTWISE,
        NO,
    ),
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(T1 *, const T1 *, int)": (
        ELEMENTWISE,
        NO,
    ),
    "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *)": (
        ELEMENTWISE,
        NO,
    ),
    "triton_poi_fused_mul_silu_0": (ELEMENTWISE, NO),
    "triton_poi_fused__scaled_dot_product_flash_attention_mul_view_2": (ELEMENTWISE, NO),
    "triton_poi_fused_add_cutlass_scaled_mm_7": (ELEMENTWISE, NO),
    "loop_add_fusion_3": (ELEMENTWISE, NO),
    "cupy_multiply__float64_float64_float64": (ELEMENTWISE, NO),
    "saxpy(double *, double *, double *, double, int)": (ELEMENTWISE, NO),
    "void my::convert_kernel<float, __half>(const T1 *, T2 *)": (ELEMENTWISE, NO),
    # copies and indices
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::"
    "operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4>(int)": (
        COPY,
        NO,
    ),
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, (unsigned long)1>>(int)": (
        COPY,
        NO,
    ),
    "void at::native::<unnamed>::CatArrayBatchedCopy_vectorized<at::native::<unnamed>::OpaqueType<(unsigned int)4>, unsigned int>(char *)": (
        COPY,
        NO,
    ),
    "void at::native::index_elementwise_kernel<(int)128, (int)4, void at::native::gpu_index_kernel<int>>(long, T3)": (
        COPY,
        NO,
    ),
    "void at::native::<unnamed>::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, (int)2, (int)2, (int)-2>(T1)": (
        COPY,
        NO,
    ),
    "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long, long, bool)": (
        COPY,
        NO,
    ),
    "void at::native::<unnamed>::embedding_backward_feature_kernel<c10::BFloat16, float, long>(const T3 *)": (
        COPY,
        NO,
    ),
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, (bool)0, (bool)1, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>)": (
        COPY,
        NO,
    ),
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(const T1 *)": (
        COPY,
        NO,
    ),
    "void pack_for_nccl_kernel<__nv_bfloat16>(const T1 *, T1 *, int)": (COPY, NO),
    "compute_gemm_pointers(float2 **, const float2 *, int, const float2 *, int, const float2 *, int, int)": (
        COPY,
        NO,
    ),
    "cudnn::gemm::computeOffsetsKernel(cudnn::gemm::ComputeOffsetsParams)": (COPY, NO),
    "triton_poi_fused_clone_transpose_4": (COPY, NO),
    "input_transpose_fusion": (COPY, NO),
    "loop_dynamic_update_slice_fusion_30": (COPY, NO),
    # optimizers
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata<(int)4>, at::native::"
    "<unnamed>::FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)1, (bool)0>, const float *>(T1, T2)": (
        OPTIMIZER,
        NO,
    ),
    "void multi_tensor_apply_kernel<TensorListMetadata<(int)4>, AdamFunctor<float, float, int>, float>(long, volatile int *, T1)": (
        OPTIMIZER,
        NO,
    ),
    "void tensorflow::functor::ApplyAdamKernel<float>(int, T1 *, T1 *)": (OPTIMIZER, NO),
    "void kOptimizerStatic8bit2StateBlockwise<float, (int)0, (int)256, (int)1>(T1 *)": (
        OPTIMIZER,
        NO,
    ),
    # communication
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)": (
        COMMUNICATION,
        NO,
    ),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *, vllm::RankSignals, vllm::Signal *)": (
        COMMUNICATION,
        NO,
    ),
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::"
    "AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(T1)": (COMMUNICATION, NO),
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)": (
        COMMUNICATION,
        NO,
    ),
    "void c10d::symmetric_memory::<unnamed>::multimem_one_shot_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *)": (
        COMMUNICATION,
        NO,
    ),
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, (int)8, (bool)1>(tensorrt_llm::kernels::AllReduceParams)": (
        COMMUNICATION,
        NO,
    ),
    "void deep_ep::intranode::dispatch<(int)8, (int)768, (int)8192>(int4 *, float *, int *, long *)": (
        COMMUNICATION,
        NO,
    ),
    "void nvshmemi_reduce_kernel<float, (rdxn_ops)4>(T1 *)": (COMMUNICATION, NO),
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<(int)8>(int, int, int)": (COMMUNICATION, NO),
    # nothing tells
    "nvkernel_main_F1L41_2": (OTHER, UNKNOWN),
    "__omp_offloading_10303_2b5a__Z7computev_l27": (OTHER, UNKNOWN),
    "void Kokkos::Impl::cuda_parallel_launch_constant_memory<Kokkos::Impl::ParallelReduce<Kokkos::Impl::CombinedFunctorReducer<Energy>>>()": (
        OTHER,
        UNKNOWN,
    ),
    "void clover::par_ranged2d_kernel<advec_cell_kernel(int, int, double)::[lambda(int, int) (instance 1)]>(clover::Range2d, T1)": (
        OTHER,
        UNKNOWN,
    ),
    "jacobi_kernel(float *, const float *, float *, int, int, int)": (OTHER, UNKNOWN),
    "void my_kernel<cutlass::gemm::GemmShape<(int)1, (int)1, (int)1>>(cudnnConvolutionStruct, softmax_params, ncclComm *)": (
        OTHER,
        UNKNOWN,
    ),
    "lambda_rule(float *)": (OTHER, UNKNOWN),
    "": (OTHER, UNKNOWN),
}

CASES = {name: (GEMM, *expected) for name, expected in GEMMS.items()} | {
    name: (*expected, "") for name, expected in KERNELS.items()
}


def classify(name: str, classifier: Classifier = SHIPPED) -> tuple[str, str, str]:
    kernel_class = classifier.classify(name)
    return (
        LABELS[CLASS][kernel_class.kind],
        LABELS[TENSOR][kernel_class.tensor_cores],
        kernel_class.shape,
    )


@pytest.mark.parametrize(("name", "expected"), CASES.items())
def test_class(name: str, expected: tuple[str, str, str]) -> None:
    assert classify(name) == expected


def test_enough_real_names() -> None:
    assert len(CASES) >= 150


def test_kernels_of_nccl_communicate_and_no_others_for_their_name() -> None:
    assert {classify(name)[0] for name in OF_NCCL} == {COMMUNICATION}
    others = {name for name in NOT_OF_NCCL if classify(name)[0] == COMMUNICATION}
    assert others == {
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int)2>(vllm::RankData *)"
    }


def test_the_own_name_of_a_kernel() -> None:
    for name, own in {
        "void <unnamed>::f<a<b>>(int)": "f",
        "void (anonymous namespace)::N::F<a>(int)": "n::f",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(int)": "internal::gemvx::kernel",
        "nvjet_TNN": "nvjet_tnn",
        "f(int)": "f",
    }.items():
        assert normalize_name(name)[1] == own


# ---- names that mean harm --------------------------------------------------------------------------------------------------------------

PIECES = (
    "gemm_",
    "cutlass_",
    "tensorop_",
    "1x1x1_",
    "1x1_",
    "_nt_",
    "a",
    "(",
    "<",
    "_fusion",
    "triton_poi_fused",
    "_copy",
    "std::enable_if<",
    "cute::tuple<cute::C<1>, ",
    "CollectiveMma<",
    "loop",
    "_reduce",
    "sm80_xmma_",
    "volta_",
    "884",
    "cudnn",
    "nvjet_a_1x1_1x1_",
    "\n",
    "\ud800",
)
HOSTILE = [piece * (1_000_000 // len(piece)) for piece in PIECES] + [
    head + piece * 400_000
    for head in (
        "nvjet_tst_1x1_1x1",
        "volta_",
        "sm80_xmma_gemm",
        "void cutlass::Kernel<cutlass_",
        "void cutlass::device_kernel<CollectiveMma<",
        "triton_poi_fused",
        "loop",
        "input_",
        "cupy_",
        "void cutlass::Kernel<cutlass::gemm::GemmShape<1, 1, ",
        "fmha_cutlassF_f32_",
    )
    for piece in ("_1x1", "_copy", "gemm_", "_a", "1", ", ")
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:24] + name[-6:]))
def test_no_rule_backtracks_without_end(name: str) -> None:
    """A rule that backtracks would take years on these names."""
    assert isinstance(classify(name, Classifier(load_rules()))[0], str)


def test_damaged_names_have_a_class() -> None:
    chance = random.Random(1)
    names = list(CASES)
    for _ in range(5_000):
        name = chance.choice(names)
        at = chance.randrange(len(name) + 1)
        assert classify(
            name[:at]
            + chance.choice(("", *"<>()_: x8", chance.choice(names)[:40]))
            + name[at + 3 :]
        )[0]


# ---- rules of users ---------------------------------------------------------------------------------------------------------------------


def test_rules_of_users_come_first(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("""
rules:
  - {class: gemm, name: ^my_product_, tensor_cores: yes, shape: '_(?P<layout>[nt]+)_T(?P<m>[0-9]+)x(?P<n>[0-9]+)'}
  - {class: Attention, name: '^Jacobi', full: 'float \\*, const'}
  - {class: Other, name: saxpy}
""")
    classifier = Classifier(load_rules(rules))
    assert classify("my_product_tn_t64x32(float *)", classifier) == (GEMM, YES, "tn 64x32")
    assert classify("my_product_plain(float *)", classifier) == (GEMM, YES, "")
    assert classify("jacobi_kernel(float *, const float *)", classifier) == (ATTENTION, UNKNOWN, "")
    assert classify("jacobi_kernel(int)", classifier) == (OTHER, UNKNOWN, "")
    assert classify("saxpy(double *, double *)", classifier) == (OTHER, UNKNOWN, "")
    assert classify("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", classifier) == (
        GEMM,
        YES,
        "tnn 192x192x64",
    )


def test_the_example_of_the_documentation_is_valid() -> None:
    page = (SAMPLES.parent / "docs" / "kernel-classes.md").read_text(encoding="utf-8")
    classifier = Classifier(
        read_rules(page.partition("```yaml\n")[2].partition("```")[0], "kernel-classes.md")
    )
    assert classify("my_product_nt_tile64x64x16(float *)", classifier) == (GEMM, YES, "nt 64x64x16")
    assert classify("void launch<MyAttention<float>>(float *)", classifier) == (
        ATTENTION,
        UNKNOWN,
        "",
    )
    assert classify("void ns::apply_stencil<2>(float *)", classifier) == (CONVOLUTION, UNKNOWN, "")


def test_the_rules_that_come_along_are_right() -> None:
    """They are not checked when they are loaded."""
    text = read_data_text("nsys2prv.events.catalogue", "kernel_rules.yaml")
    assert read_rules(text, "kernel_rules.yaml") == load_rules()


#: Patterns as users may write them, beside those that come along.
ODD_PATTERNS = (
    r"a(?:bc|de(?:f|g)?)+h?|x{2}yz",
    r"(?P<first>ab|cd)_(?P=first)",
    r"(?<![a-z])(foo)?bar\d{1,3}|[]x]y",
    r"ab(?=cd)|(?:)ef",
    r"(?s)a.b|c",
    r"[^|]q|w[|]",
)


@given(st.data())
def test_no_name_that_a_pattern_matches_is_sorted_out(data: st.DataObject) -> None:
    shipped = [text for rule in load_rules() for text in (rule.name, rule.full) if text]
    pattern = re.compile(_lower_pattern(data.draw(st.sampled_from([*shipped, *ODD_PATTERNS]))))
    name = data.draw(st.from_regex(pattern))
    assert bool(_search(pattern.pattern, name)) == bool(pattern.search(name))
    assert _search(pattern.pattern, name)


def test_patterns_have_required_words() -> None:
    assert _find_required_words("^nccl(?:Dev)?Kernel_|(?<!x)(?:ab|cde)mm?") == (
        "kernel_",
        "ab",
        "cde",
    )
    assert _find_required_words(r"\d+|gemm") == _find_required_words("(?i)gemm") == ()


def test_case_does_not_count_and_escapes_are_kept() -> None:
    classifier = Classifier(
        read_rules(
            r"""rules: [{class: GEMM, name: '^[A-F]\D+\SX$', shape: '(?P<m>\d+)(?P<LAYOUT>)'}]""",
            "rules",
        )
    )
    assert classify("Abcx", classifier)[0] == classify("ABCX", classifier)[0] == GEMM
    assert classify("A1CX", classifier)[0] == OTHER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [", "not YAML in line"),
        ("", "kernel rules are a list under the one key `rules`"),
        ("- {class: GEMM, name: x}", "kernel rules are a list under the one key `rules`"),
        ("rules: {a: b}", "kernel rules are a list under the one key `rules`"),
        ("rules: [x]", "rule 1: a rule has keys class, name"),
        ("rules: [{class: GEMM, name: x}, {class: GEMM}]", "rule 2: lacks the key name or full"),
        ("rules: [{class: Gem, name: x}]", "rule 1: class 'Gem' is none of GEMM, Attention"),
        ("rules: [{name: x}]", "rule 1: class 'None' is none of GEMM"),
        (
            "rules: [{class: GEMM, name: '(x'}]",
            "rule 1: name: '(x' is not a regular expression: missing )",
        ),
        (
            "rules: [{class: GEMM, full: 'x{3,1}'}]",
            "rule 1: full: 'x{3,1}' is not a regular expression: min repeat",
        ),
        (
            "rules: [{class: GEMM, name: 12}]",
            "rule 1: name: '12' is not a regular expression; put it in quotes",
        ),
        ("rules: [{class: GEMM, name: }]", "rule 1: name: 'None' is not a regular expression"),
        ("rules: [{class: GEMM, names: x}]", "rule 1: unknown key 'names'"),
        (
            "rules: [{class: GEMM, name: x, tensor_cores: maybe}]",
            "rule 1: tensor_cores 'maybe' is none of yes, no, unknown",
        ),
        (
            "rules: [{class: GEMM, name: x, tensor_cores: 1}]",
            "rule 1: tensor_cores '1' is none of yes, no, unknown",
        ),
        (
            "rules: [{class: GEMM, name: x, shape: '[0-9]+'}]",
            "rule 1: shape needs a group named layout, m, n or k",
        ),
        ("rules: [2020-99-99]", "not YAML"),
        ("[" * 10_000, "not YAML"),
    ],
)
def test_a_bad_file_of_rules_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(text)
    reports = sorted(map(str, (SAMPLES / "graphs").glob("rank*.sqlite")))
    assert main(["--kernel-rules", str(rules), *reports, str(tmp_path / "out.prv")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"error: {rules}: {message}" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rules.yaml"]


def test_a_file_of_rules_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Nsys2prvError, match=r"nowhere\.yaml: No such file"):
        load_rules(tmp_path / "nowhere.yaml")
    with pytest.raises(Nsys2prvError, match="Is a directory"):
        load_rules(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"rules: \xff\xfe")
    with pytest.raises(Nsys2prvError, match="must be UTF-8"):
        load_rules(binary)


# ---- in a trace -----------------------------------------------------------------------------------------------------------------------


def sum_by_class(trace: Trace) -> Counter[tuple[str, str, str]]:
    """Return the time of kernels by class, tensor cores and shape."""
    total: Counter[tuple[str, str, str]] = Counter()
    for code in KERNEL_TYPES:
        for interval in trace.list_intervals(code):
            shape = (
                trace.get_label(SHAPE, interval.others[SHAPE]) if SHAPE in interval.others else ""
            )
            key = (
                trace.get_label(CLASS, interval.others[CLASS]),
                trace.get_label(TENSOR, interval.others[TENSOR]),
                shape,
            )
            total[key] += interval.end - interval.begin
    return total


def sum_by_class_in_sql(reports: list[Path]) -> Counter[tuple[str, str, str]]:
    """Return the same time, from SQL."""
    total: Counter[tuple[str, str, str]] = Counter()
    for path in reports:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        query = (
            "SELECT coalesce(nullif(long.value, ''), short.value, ''), sum(max(end - start, 1)) FROM CUPTI_ACTIVITY_KIND_KERNEL"
            " LEFT JOIN StringIds AS long ON long.id = demangledName LEFT JOIN StringIds AS short ON short.id = shortName GROUP BY 1"
        )
        for name, duration in connection.execute(query):
            total[classify(name)] += duration
        connection.close()
    return total


@pytest.mark.parametrize("sample", ["graphs", "training"])
def test_time_by_class_is_that_of_the_reports(sample: str, tmp_path: Path) -> None:
    reports = sorted((SAMPLES / sample).glob("rank*.sqlite"))
    convert(reports, tmp_path / "out.prv", Options(align="utc"))
    trace = read_trace(tmp_path / "out.prv")
    assert not trace.violations, str(trace.violations)
    result = sum_by_class(trace)
    assert result == sum_by_class_in_sql(reports)
    assert {GEMM, ATTENTION, NORM, COMMUNICATION} <= {kind for kind, _, _ in result}
    # The class itself is a range that lasts as long as its kernel.
    by_class: Counter[str] = Counter()
    for (kind, _, _), duration in result.items():
        by_class[kind] += duration
    ranges: Counter[str] = Counter()
    for interval in trace.list_intervals(CLASS):
        ranges[trace.get_label(CLASS, interval.value)] += interval.end - interval.begin
    assert by_class == ranges


def test_each_kernel_has_its_own_class_and_users_rules_reach_the_workers(tmp_path: Path) -> None:
    names = list(CASES)[:-1]
    report = make_export(
        tmp_path / "report.sqlite",
        {
            "StringIds": make_strings(*names),
            KERNEL: [
                make_kernel(
                    100 * number, 100 * number + number, demangledName=number, shortName=number
                )
                for number in range(1, len(names) + 1)
            ],
        },
    )
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{class: Optimizer, name: ^jacobi_kernel$, tensor_cores: no}]")
    for options, jacobi in (
        (Options(full_kernel_names=True), (OTHER, UNKNOWN, "")),
        (Options(full_kernel_names=True, jobs=2, kernel_rules=rules), (OPTIMIZER, NO, "")),
    ):
        convert([report], tmp_path / "out.prv", options)
        trace = read_trace(tmp_path / "out.prv")
        assert not trace.violations, str(trace.violations)
        expected = Counter()
        for number, name in enumerate(names, 1):
            expected[jacobi if name.startswith("jacobi") else CASES[name]] += number
        assert sum_by_class(trace) == expected


# ---- the corpus -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus() -> dict[str, int]:
    """Return every kernel of the corpus by name, and how often it ran."""
    query = (
        "SELECT coalesce(nullif(long.value, ''), short.value, ''), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        " LEFT JOIN StringIds AS long ON long.id = demangledName LEFT JOIN StringIds AS short ON short.id = shortName GROUP BY 1"
    )
    result: Counter[str] = Counter()
    for name, runs in read_rows_from_corpus(query):
        result[name] += runs
    return result


OF_LIBRARIES = (
    "at::",
    "at_cuda",
    "cub::",
    "thrust::",
    "cudnn",
    "cublas",
    "cutlass",
    "nccl",
    "nvjet",
    "triton",
    "sm80_",
    "sm90_",
    "ampere_",
    "volta_",
)


def test_every_kernel_of_the_corpus_has_a_class(corpus: dict[str, int]) -> None:
    assert {classify(name)[0] for name in corpus} <= set(LABELS[CLASS].values())
    for name in corpus:
        assert is_nccl_kernel(name) == (classify(name)[0] == COMMUNICATION), name


def test_no_kernel_of_a_library_is_left_over(corpus: dict[str, int]) -> None:
    """Of the libraries whose names mean something. There is no class of pooling."""
    others = [normalize_name(name)[0] for name in corpus if classify(name)[0] == OTHER]
    assert [name for name in others if name.startswith(OF_LIBRARIES) and "pool" not in name] == []


def test_nothing_that_looks_like_a_gemm_is_left_over(corpus: dict[str, int]) -> None:
    for name in corpus:
        if any(
            word in normalize_name(name)[1]
            for word in ("gemm", "gemv", "matmul", "nvjet", "cutlass", "cublas", "tensorop")
        ):
            assert classify(name)[0] != OTHER, name


def test_few_kernels_are_left_over_but_those_of_applications(corpus: dict[str, int]) -> None:
    """The corpus is mostly of small programs of HPC, whose kernels are called after their physics:
    they are "Other" and should be.

    CloverLeaf alone has 100 of its 511 names, all lambdas. Of the names of the rest (counted: 17 %)
    and of all runs of kernels (22 %):
    """
    others = {name for name in corpus if classify(name)[0] == OTHER}
    rest = {name for name in corpus if not normalize_name(name)[0].startswith("clover::")}
    assert len(others & rest) < 0.2 * len(rest)
    assert sum(corpus[name] for name in others) < 0.25 * sum(corpus.values())
