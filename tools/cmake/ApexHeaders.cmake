# The headers that are installed, each listed once: ApexInstall.cmake installs these lists, tools/reference documents them.
# As a script, cmake -P ApexHeaders.cmake, it prints them, one a line: `public PATH` or `private PATH`.

# Headers that programs may include.
set(APEX_CPP_PUBLIC_HEADERS
  apex_cpp/activation_checkpoint.h
  apex_cpp/amp.h
  apex_cpp/amp/autocast.h
  apex_cpp/amp/casts.h
  apex_cpp/amp/checkpoint.h
  apex_cpp/amp/comparison.h
  apex_cpp/amp/doctor.h
  apex_cpp/amp/functional.h
  apex_cpp/amp/grad_scaler.h
  apex_cpp/amp/initialize.h
  apex_cpp/amp/legacy_init.h
  apex_cpp/amp/level_fallback.h
  apex_cpp/amp/master_params.h
  apex_cpp/amp/policy.h
  apex_cpp/amp/scale_loss.h
  apex_cpp/amp/session.h
  apex_cpp/amp/state_dict.h
  apex_cpp/amp/statistics.h
  apex_cpp/amp/step_result.h
  apex_cpp/amp/trace.h
  apex_cpp/amp/training_state.h
  apex_cpp/amp_C.h
  apex_cpp/amp_C/elementwise.h
  apex_cpp/amp_C/optimizers.h
  apex_cpp/apex_C.h
  apex_cpp/contrib.h
  apex_cpp/files/csv.h
  apex_cpp/fp16_utils.h
  apex_cpp/fp16_utils/fp16_optimizer.h
  apex_cpp/fp16_utils/loss_scaler.h
  apex_cpp/fp16_utils/networks.h
  apex_cpp/fp16_utils/param_lists.h
  apex_cpp/fused_dense.h
  apex_cpp/lr_scheduler.h
  apex_cpp/lr_scheduler/combined.h
  apex_cpp/lr_scheduler/one_cycle.h
  apex_cpp/lr_scheduler/scheduler.h
  apex_cpp/lr_scheduler/schedules.h
  apex_cpp/mlp.h
  apex_cpp/multi_tensor_apply.h
  apex_cpp/multi_tensor_apply/cuda_launch.cuh
  apex_cpp/multi_tensor_apply/metadata.h
  apex_cpp/multi_tensor_apply/tensor_lists.h
  apex_cpp/normalization.h
  apex_cpp/normalization/functional.h
  apex_cpp/normalization/modules.h
  apex_cpp/optimizers.h
  apex_cpp/optimizers/fused_adagrad.h
  apex_cpp/optimizers/fused_adam.h
  apex_cpp/optimizers/fused_lamb.h
  apex_cpp/optimizers/fused_lars.h
  apex_cpp/optimizers/fused_lion.h
  apex_cpp/optimizers/fused_mixed_precision_lamb.h
  apex_cpp/optimizers/fused_novograd.h
  apex_cpp/optimizers/fused_optimizer.h
  apex_cpp/optimizers/fused_schedule_free_adamw.h
  apex_cpp/optimizers/fused_sgd.h
  apex_cpp/optimizers/muon.h
  apex_cpp/optimizers/options.h
  apex_cpp/optimizers/stepped_param.h
  apex_cpp/parallel.h
  apex_cpp/parallel/distributed_data_parallel.h
  apex_cpp/parallel/distributed_fused_adam.h
  apex_cpp/parallel/larc.h
  apex_cpp/parallel/reducer.h
  apex_cpp/parallel/sync_batch_norm.h
  apex_cpp/swa_utils.h
  apex_cpp/tensorboard/summary_writer.h
  kernels/multi_tensor.h
  opt_levels/cast_lists.h
  opt_levels/initialize_options.h
  opt_levels/opt_level.h
  opt_levels/properties.h
  opt_levels/resolve.h)

# Headers that public headers include. Each names in its second line the public header to include instead. tests/layering checks
# that this list is complete and has nothing else.
set(APEX_CPP_PRIVATE_HEADERS
  apex_cpp/amp/casts/cast_plan.h
  apex_cpp/amp/casts/cast_rules.h
  apex_cpp/amp/casts/operator_slot.h
  apex_cpp/amp/casts/thread_casts.h
  apex_cpp/amp/checkpoint/archive.h
  apex_cpp/amp/checkpoint/content.h
  apex_cpp/amp/checkpoint/optimizer_content.h
  apex_cpp/amp/checkpoint/parts.h
  apex_cpp/amp/checkpoint/safetensors.h
  apex_cpp/amp/comparison/comparison_run.h
  apex_cpp/amp/comparison/measurement.h
  apex_cpp/amp/doctor/divergence.h
  apex_cpp/amp/doctor/doctor_run.h
  apex_cpp/amp/doctor/grad_taps.h
  apex_cpp/amp/doctor/step_observer.h
  apex_cpp/amp/float8/history.h
  apex_cpp/amp/float8/product.h
  apex_cpp/amp/handles/amp_optimizer.h
  apex_cpp/amp/handles/amped.h
  apex_cpp/amp/handles/cast.h
  apex_cpp/amp/handles/forward_casts.h
  apex_cpp/amp/handles/forward_signature.h
  apex_cpp/amp/handles/model.h
  apex_cpp/amp/handles/model_kinds.h
  apex_cpp/amp/optimizer_classes/optimizer_traits.h
  apex_cpp/amp/optimizer_classes/original_optimizer.h
  apex_cpp/amp/optimizer_classes/param_state.h
  apex_cpp/amp/scaling/loss_scaler.h
  apex_cpp/amp/scaling/overflow_report.h
  apex_cpp/amp/statistics/tensor_statistics.h
  apex_cpp/amp/tensors/convert_network.h
  apex_cpp/amp/tensors/map_tensors.h
  apex_cpp/amp/tensors/parameters.h
  apex_cpp/amp/tensors/tensor_version.h
  apex_cpp/optimizers/detail/coded_moment.h
  apex_cpp/parallel/ddp/ddp_options.h
  apex_cpp/parallel/processes/collectives.h
  apex_cpp/parallel/processes/process_group.h
  apex_cpp/torch_compat/dispatch_keys.h
  apex_cpp/torch_compat/private_members.h)

# apex_declare_headers(target): makes the two lists file sets of the target, `HEADERS` and `private_headers`.
function(apex_declare_headers target)
  list(TRANSFORM APEX_CPP_PUBLIC_HEADERS PREPEND "${PROJECT_SOURCE_DIR}/")
  list(TRANSFORM APEX_CPP_PRIVATE_HEADERS PREPEND "${PROJECT_SOURCE_DIR}/")
  target_sources(${target} PUBLIC
    FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${APEX_CPP_PUBLIC_HEADERS}
    FILE_SET private_headers TYPE HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${APEX_CPP_PRIVATE_HEADERS})
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  list(TRANSFORM APEX_CPP_PUBLIC_HEADERS PREPEND "public ")
  list(TRANSFORM APEX_CPP_PRIVATE_HEADERS PREPEND "private ")
  list(JOIN APEX_CPP_PUBLIC_HEADERS "\n" public)
  list(JOIN APEX_CPP_PRIVATE_HEADERS "\n" private)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${public}\n${private}")
endif()
