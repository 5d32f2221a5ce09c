/* The maps name options that exist and conversions that are known, and have all keys that are promised. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/migrate/map.h"
#include "src/migrate/migrate_state.h"
#include "src/options/options.h"
#include "tests/support/check.h"

static void open_map(enum ot_program program, struct ot_arena **arena, struct ot_map *map) {
    check_ok(ot_arena_open(arena));
    check_ok(ot_map_read(program, *arena, map));
    assert_true(map->n > 50);
}

static void close_map(struct ot_arena *arena, struct ot_map *map) {
    free(map->rows);
    ot_arena_close(arena);
}

/* An option that a text names with its dashes. */
static void check_text(const char *key, const char *text) {
    for (const char *at = text; (at = strstr(at, "--"));) {
        size_t n = strspn(at += 2, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (ot_option_find(at, n, OT_COMMAND_TRAIN) < 0)
            fail_msg("%s: \"%s\" names --%.*s, which is no option", key, text, (int)n, at);
    }
    assert_true(strlen(text) < 160);
}

static void check_clause(const struct ot_map *map, const struct ot_map_row *row,
                         const struct ot_map_clause *clause) {
    static const char hows[] = "number int text list each switch flag percent warmup last twice";
    const char *condition;
    size_t n;
    if (clause->option) {
        int index = ot_option_find(clause->option, strlen(clause->option), OT_COMMAND_TRAIN);
        if (index < 0 || !(ot_option_at(index)->commands & OT_FOR_TRAIN))
            fail_msg("%s: --%s is no option of train", row->keys, clause->option);
    }
    if (clause->action == OT_MAP_CALL && !ot_migrate_has_function(clause->how))
        fail_msg("%s: calls %s, which does not exist", row->keys, clause->how);
    if (clause->action <= OT_MAP_PART && *clause->how != '=' && !ot_words_have(hows, clause->how))
        fail_msg("%s: %s is no conversion", row->keys, clause->how);
    if (clause->action <= OT_MAP_PART && *clause->how == '=' && clause->how[1] && clause->option &&
        clause->action != OT_MAP_PART) {
        struct ot_options *options = calloc(1, sizeof *options);
        const struct ot_option *option =
            ot_option_at(ot_option_find(clause->option, strlen(clause->option), OT_COMMAND_TRAIN));
        if (ot_option_parse_value(option, row->keys, clause->how + 1, options) < 0)
            fail_msg("%s: %s", row->keys, ot_error_text());
        free(options);
    }
    for (int i = 0; clause->conditions && (condition = ot_words_at(clause->conditions, i, &n)); i++) {
        char key[96];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(condition, "!="), condition);
        if (strcmp(key, "@trainer") != 0 && !ot_map_find(map, key) && !ot_map_has_inside(map, key, true))
            fail_msg("%s: the condition %.*s names no key", row->keys, (int)n, condition);
    }
    check_text(row->keys, clause->text);
}

static void maps_name_what_exists(void **state) {
    (void)state;
    for (int p = 0; p < OT_PROGRAM_COUNT; p++) {
        struct ot_arena *arena;
        struct ot_map map;
        open_map((enum ot_program)p, &arena, &map);
        for (size_t i = 0; i < map.n; i++) {
            assert_true(map.rows[i].n_clauses > 0);
            for (int k = 0; k < map.rows[i].n_clauses; k++)
                check_clause(&map, &map.rows[i], &map.rows[i].clauses[k]);
        }
        close_map(arena, &map);
    }
}

/* LLaMA-Factory's own rows stand before those of transformers. */
static void a_key_has_one_row(void **state) {
    (void)state;
    for (int p = 0; p < OT_PROGRAM_COUNT; p++) {
        struct ot_arena *arena;
        struct ot_map map = {0};
        const char *name;
        size_t n;
        check_ok(ot_arena_open(&arena));
        check_ok(ot_map_parse(ot_map_text((enum ot_program)p), arena, &map));
        for (size_t i = 0; i < map.n; i++)
            for (int k = 0; (name = ot_words_at(map.rows[i].keys, k, &n)); k++) {
                char key[96];
                snprintf(key, sizeof key, "%.*s", (int)n, name);
                if (key[n - 1] != '*' && ot_map_find(&map, key) != &map.rows[i])
                    fail_msg("%s has two rows in the map of %s", key, ot_program_name((enum ot_program)p));
            }
        close_map(arena, &map);
    }
}

/* The keys of DeepSpeed 0.19, as its sources have them. */
static void all_keys_of_deepspeed_have_rows(void **state) {
    (void)state;
    static const char *const blocks[][2] = {
        {"",
         "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
         "managed_gradient_accumulation dataloader_drop_last gradient_clipping communication_data_type "
         "prescale_gradients gradient_predivide_factor gradient_allreduce_op sparse_gradients "
         "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer wall_clock_breakdown memory_breakdown "
         "dump_state steps_per_print sparse_attention"},
        {"zero_optimization.",
         "stage contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions "
         "allgather_bucket_size use_multi_rank_bucket_allreduce overlap_comm load_from_fp32_weights "
         "round_robin_gradients ignore_unused_parameters elastic_checkpoint sub_group_size cpu_offload "
         "cpu_offload_param cpu_offload_use_pin_memory stage3_max_live_parameters stage3_max_reuse_distance "
         "stage3_prefetch_bucket_size stage3_param_persistence_threshold "
         "stage3_model_persistence_threshold stage3_gather_16bit_weights_on_model_save "
         "stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params "
         "stage3_allgather_sequential memory_efficient_linear override_module_apply "
         "pipeline_loading_checkpoint leaf_module mics_shard_size mics_hierarchical_params_gather "
         "zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights "
         "zero_quantized_gradients zeropp_loco_param zenflow compute_grad_norm parameter_alignment "
         "module_granularity_threshold allgather_sequential save_muon_momentum_buffer_in_memory"},
        {"zero_optimization.offload_optimizer.",
         "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio "
         "super_offload cpuadam_cores_perc"},
        {"zero_optimization.offload_param.",
         "device nvme_path buffer_count buffer_size max_in_cpu pin_memory"},
        {"aio.",
         "block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds"},
        {"fp16.", "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
                  "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads"},
        {"bf16.", "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
                  "bf16_optimizer_states"},
        {"bfloat16.", "enabled"},
        {"torch_autocast.", "enabled dtype lower_precision_safe_modules"},
        {"amp.", "enabled opt_level"},
        {"data_types.", "grad_accum_dtype param_dtype buffer_dtype"},
        {"comms_logger.", "enabled verbose prof_all debug prof_ops"},
        {"optimizer.", "type legacy_fusion"},
        {"optimizer.params.", "lr betas eps weight_decay torch_adam adam_w_mode fp32_optimizer_states "
                              "max_grad_norm"},
        {"scheduler.", "type"},
        {"scheduler.params.", "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type total_num_steps "
                              "warmup_min_ratio cos_min_ratio cycle_min_lr lr_range_test_min_lr"},
        {"activation_checkpointing.",
         "partition_activations cpu_checkpointing contiguous_memory_optimization "
         "synchronize_checkpoint_boundary profile number_checkpoints"},
        {"compile.", "deepcompile offload_opt_states offload_parameters offload_activation double_buffer"},
        {"checkpoint.", "tag_validation load_universal use_node_local_storage parallel_write.pipeline_stage "
                        "writer.type writer.decoupled writer.io_buffer_size writer.io_buffer_double"},
        {"tensorboard.", "enabled output_path job_name"},
        {"csv_monitor.", "enabled output_path job_name"},
        {"wandb.", "enabled group team project"},
        {"comet.", "enabled"},
        {"flops_profiler.", "enabled profile_step module_depth top_modules detailed output_file "
                            "recompute_fwd_factor"},
        {"autotuning.", "enabled fast metric tuner_type overwrite"},
        {"curriculum_learning.", "enabled curriculum_type min_difficulty schedule_config.difficulty_step"},
        {"data_efficiency.", "enabled"},
        {"progressive_layer_drop.", "enabled theta gamma"},
        {"eigenvalue.", "enabled"},
        {"elasticity.", "enabled"},
    };
    struct ot_arena *arena;
    struct ot_map map;
    open_map(OT_PROGRAM_DEEPSPEED, &arena, &map);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        const char *name;
        size_t n;
        for (int k = 0; (name = ot_words_at(blocks[i][1], k, &n)); k++) {
            char key[128];
            snprintf(key, sizeof key, "%s%.*s", blocks[i][0], (int)n, name);
            if (!ot_map_find(&map, key))
                fail_msg("%s has no row", key);
        }
    }
    assert_null(ot_map_find(&map, "zero_optimization.nonsense"));
    assert_null(ot_map_find(&map, "nonsense"));
    close_map(arena, &map);
}

static void faults_of_a_map_have_their_line(void **state) {
    (void)state;
    static const char *const faulty[] = {"    use lr number\n",
                                         "a\n    use lr\n",
                                         "a\n    uses lr number\n",
                                         "a\n    ignore\n",
                                         "a\n    refuse lr\n",
                                         "a\n    like lr number\n",
                                         "a\n    part lora r\n",
                                         "a\n    default 5\n",
                                         "a\n    call\n",
                                         "a\n    refuse lr; \n",
                                         "a\n    use lr number x\n",
                                         "a\n    use lr number\n    default 5\n    ignore x\n"};
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        struct ot_arena *arena;
        struct ot_map map = {0};
        check_ok(ot_arena_open(&arena));
        if (ot_map_parse(faulty[i], arena, &map) != -OT_E_INTERNAL)
            fail_msg("accepted: %s", faulty[i]);
        assert_non_null(strstr(ot_error_text(), "line "));
        close_map(arena, &map);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_name_what_exists),
        cmocka_unit_test(a_key_has_one_row),
        cmocka_unit_test(all_keys_of_deepspeed_have_rows),
        cmocka_unit_test(faults_of_a_map_have_their_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
