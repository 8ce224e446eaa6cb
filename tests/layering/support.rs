//! `docs/support.md`: what works where, one row a feature, each held by tests that exist. `UPDATE_DOCS=1` writes the page.

use super::{root, text};
use std::fmt::Write;

const PAGE: &str = "docs/support.md";
const YES: &str = "✓";
const NO: &str = "–";

/// A feature of the language or of the library: what holds for it, and the tests that show it, `file::test`.
struct Feature {
    name: &'static str,
    /// What is proved of it before it runs.
    proved: (&'static str, &'static [&'static str]),
    /// What the emulator computed and a reference was compared with.
    emulated: (&'static str, &'static [&'static str]),
    /// The cards and worlds on which the hardware suite last ran it. Whoever runs the suite writes them here.
    gpus: (&'static str, &'static [&'static str]),
    limits: &'static str,
}

const FEATURES: &[Feature] = &[
    Feature {
        name: "library: `gemm`, `ag_gemm`, `gemm_rs`, `gemm_ar`, by pushes, pulls, rings and in bulk",
        proved: (
            "1 to 128 ranks",
            &[
                "tests/schedules/library.rs::every_schedule_agrees_with_its_reference_in_every_world",
                "codegen/tests/tile/verify.rs::every_library_schedule_is_accepted_for_every_world_and_ragged_shapes",
            ],
        ),
        emulated: (
            "1 to 8 ranks",
            &["codegen/tests/tile/emulator/mod.rs::the_library"],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks; 2 H200; 4 H200; 2 H100",
            &["tests/hardware/right.rs::agrees"],
        ),
        limits: "`rs_ring` ran on one H200 only, `ag_gemm_double_ring` on one and two",
    },
    Feature {
        name: "your own schedule",
        proved: (
            YES,
            &["tests/schedules/outsiders.rs::what_readers_of_the_docs_write_runs_or_is_refused"],
        ),
        emulated: (
            YES,
            &["codegen/tests/tile/random.rs::accepted_schedules_never_fail_and_rejected_ones_do"],
        ),
        gpus: (
            "where all that it uses is",
            &[
                "tests/hardware/right/newcomers.rs::over_pairs",
                "tests/hardware/random.rs::integers_have_the_bits_of_the_emulator",
            ],
        ),
        limits: "`check` names the statement that has no kernel: [`refused.md`](refused.md)",
    },
    Feature {
        name: "`if` on ranks, orders by closure, arithmetic over ranks, `but_last`, a wait behind a signal of the same item",
        proved: (
            YES,
            &["codegen/tests/tile/orders.rs::what_a_closure_said_once_is_what_is_lowered"],
        ),
        emulated: (
            YES,
            &[
                "codegen/tests/warp/control.rs::what_asks_about_ranks_has_the_numbers_of_its_reference",
            ],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks",
            &[
                "tests/hardware/right/strangers.rs::exchange",
                "tests/hardware/right/strangers.rs::one_shot",
            ],
        ),
        limits: "",
    },
    Feature {
        name: "some items of a chunk: `skip`, `take`, `step_by`, `first_half`, `second_half`",
        proved: (
            YES,
            &[
                "codegen/tests/tile/verify.rs::a_selection_has_one_step_and_numbers_that_are_none_below_zero",
            ],
        ),
        emulated: (
            YES,
            &["codegen/tests/warp/selected.rs::what_one_rank_does_alone_is_tried"],
        ),
        gpus: (
            "1 H200: 1 to 5 and 8 ranks",
            &["tests/hardware/right/strangers.rs::halves_by_turns"],
        ),
        limits: "not in clusters",
    },
    Feature {
        name: "all-to-all: `Exchanged` outputs (`all_to_all`)",
        proved: (
            "1 to 128 ranks",
            &["codegen/tests/tile/verify.rs::an_exchanged_tensor_is_written_slot_by_slot"],
        ),
        emulated: (
            "1 to 8 ranks",
            &["codegen/tests/tile/emulator/mod.rs::the_library"],
        ),
        gpus: ("1 H200: 1 to 4 ranks", &["tests/hardware/right.rs::agrees"]),
        limits: "what has slots is multiplied in a later launch",
    },
    Feature {
        name: "gathered results (`gemm_ag`)",
        proved: (
            "1 to 128 ranks",
            &["codegen/tests/tile/verify.rs::a_gathered_result_is_stored_and_an_input_is_copied"],
        ),
        emulated: ("1 to 8 ranks", &["tests/hardware/gathered.rs::emulated"]),
        gpus: (
            "1 H200: 1 to 5 and 8 ranks",
            &[
                "tests/hardware/gathered.rs::by_comm",
                "tests/hardware/gathered.rs::by_ring",
            ],
        ),
        limits: "ranks compute rows",
    },
    Feature {
        name: "`#[spare_warps]` loops, waits for a number, copies of what was just copied",
        proved: (
            YES,
            &["codegen/tests/warp/control.rs::a_spare_warp_that_says_nothing_is_found"],
        ),
        emulated: (
            YES,
            &[
                "codegen/tests/warp/control.rs::what_asks_about_ranks_has_the_numbers_of_its_reference",
            ],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks",
            &["tests/hardware/right/strangers.rs::pushed_by_spare_warps"],
        ),
        limits: "no wait behind a copy or signal of its own item",
    },
    Feature {
        name: "several `#[comm]` roles at the same time",
        proved: (
            YES,
            &["codegen/tests/warp/roles.rs::a_role_may_wait_for_another"],
        ),
        emulated: (
            YES,
            &["codegen/tests/warp/roles.rs::two_rings_of_their_own"],
        ),
        gpus: (
            "1 H200: 1 to 5 and 8 ranks",
            &[
                "tests/hardware/right/strangers.rs::two_rings",
                "tests/hardware/right/strangers.rs::pull_beside_push",
            ],
        ),
        limits: "",
    },
    Feature {
        name: "tiles without a product; sums of stored tiles, also by `#[comm]` CTAs (`bulk_rs`)",
        proved: (
            YES,
            &["codegen/tests/warp/summing_roles.rs::what_is_missing_in_a_sum_is_found"],
        ),
        emulated: (
            YES,
            &["codegen/tests/warp/summing_roles.rs::tiles_that_are_sent_and_added"],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks",
            &[
                "tests/hardware/right/strangers.rs::sum_of_inputs",
                "tests/hardware/right/strangers.rs::added_beside",
            ],
        ),
        limits: "cooperative tiles",
    },
    Feature {
        name: "a buffer in a few slots, written again when its reader acknowledged",
        proved: (
            YES,
            &["codegen/tests/tile/double_buffer.rs::what_was_acknowledged_may_be_overwritten"],
        ),
        emulated: (
            YES,
            &["codegen/tests/warp/double_buffer.rs::its_warps_wait_for_what_was_acknowledged"],
        ),
        gpus: (
            "1 H200: 1 to 5 and 8 ranks",
            &["tests/hardware/right/strangers.rs::two_slots"],
        ),
        limits: "",
    },
    Feature {
        name: "several products in an item (`swiglu`, `ag_swiglu`)",
        proved: (
            YES,
            &["codegen/tests/warp/products.rs::products_of_every_sort_of_tile"],
        ),
        emulated: (YES, &["codegen/tests/tile/emulator/mod.rs::the_library"]),
        gpus: ("2 H200: 1 to 4 ranks", &["tests/hardware/right.rs::agrees"]),
        limits: "one K, no split-K, no sum over ranks",
    },
    Feature {
        name: "gathered weights: ranks divide the columns of the product (`fsdp_gemm`)",
        proved: (
            "1 to 128 ranks",
            &["codegen/tests/tile/dims.rs::ranks_divide_one_side_of_a_product"],
        ),
        emulated: (
            "1 to 8 ranks",
            &["codegen/tests/warp/columns.rs::all_warps_agree_with_the_schedule"],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks",
            &[
                "tests/hardware/right.rs::agrees",
                "tests/hardware/right/strangers.rs::shards_of_two_layers",
            ],
        ),
        limits: "by `#[comm]` in layout nt, by copy engine in nn and tn, too",
    },
    Feature {
        name: "several GEMM loops with sizes of their own (`mlp`, `experts`)",
        proved: (
            YES,
            &["codegen/tests/warp/layers.rs::layers_of_several_widths"],
        ),
        emulated: (
            YES,
            &["codegen/tests/warp/layers.rs::layers_of_one_product_and_of_two"],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks; 2 H200",
            &[
                "tests/hardware/right/strangers.rs::two_layers_over_ranks",
                "tests/hardware/right/strangers.rs::layers_of_two_widths",
            ],
        ),
        limits: "settings of `#[gemm(..)]` are those of all loops; ping-pong needs one depth",
    },
    Feature {
        name: "schedules without `#[gemm]`: an all-gather, a dispatch, a reduce-scatter, an all-reduce",
        proved: (
            YES,
            &["codegen/tests/warp/without_gemm.rs::loops_that_only_wait_are_refused"],
        ),
        emulated: (
            YES,
            &["codegen/tests/warp/without_gemm.rs::an_all_reduce_of_tiles"],
        ),
        gpus: (
            "1 H200: 1 to 5 and 8 ranks",
            &[
                "tests/hardware/right/strangers.rs::reduce_scatter_alone",
                "tests/hardware/right/strangers.rs::dispatched_alone",
            ],
        ),
        limits: "copies alone ran with 1 to 4 ranks",
    },
    Feature {
        name: "copies by copy engine",
        proved: (
            YES,
            &[
                "codegen/tests/warp/queues.rs::the_library_is_right_with_any_number_of_queues_at_a_rank_a_gpu",
            ],
        ),
        emulated: (
            YES,
            &[
                "codegen/tests/warp/host_copies.rs::a_rank_fetches_its_peers_rows_and_says_when_it_has_read_them",
            ],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks; 4 H200",
            &[
                "tests/hardware/gathered.rs::by_copy_engine",
                "tests/hardware/pulls.rs::all_ways_by_copy_engines",
            ],
        ),
        limits: "from or to the rank's own memory; not in a captured graph",
    },
    Feature {
        name: "launches in a graph that the program captures",
        proved: (NO, &[]),
        emulated: (
            YES,
            &[
                "runtime/tests/emulated/graphs.rs::replays_move_and_compute_what_launches_do_and_take_turns_with_them",
            ],
        ),
        gpus: (
            "1 H100: 2 and 4 ranks",
            &[
                "tests/hardware/capture.rs::ten_thousand_replays_of_a_graph_that_the_program_captured_between_launches",
            ],
        ),
        limits: "not with copies by copy engine",
    },
    Feature {
        name: "bf16, f16, f32; layouts nt, nn, tn",
        proved: (
            YES,
            &["codegen/tests/warp/cuda.rs::operands_may_be_mn_major"],
        ),
        emulated: (
            "with their rounding",
            &["codegen/tests/tile/emulator/mod.rs::ragged_rows_layouts_and_types"],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks",
            &[
                "tests/hardware/right.rs::layout_nn",
                "tests/hardware/right.rs::layout_tn",
            ],
        ),
        limits: "no f32 operands on GPUs; where TMA adds f32 it may flush subnormals",
    },
    Feature {
        name: "bias, GELU, SiLU, residual, `#[epilogue]` functions, `Accumulated` outputs",
        proved: (
            YES,
            &["codegen/tests/warp/epilogue.rs::values_are_functions_and_operands_come_by_subtiles"],
        ),
        emulated: (
            YES,
            &["tests/schedules/macros.rs::an_epilogue_is_its_own_oracle"],
        ),
        gpus: (
            "1 H200",
            &[
                "tests/hardware/epilogue.rs::every_epilogue_agrees_with_the_reference",
                "tests/hardware/accumulate.rs::launches_in_a_row_go_on_adding",
            ],
        ),
        limits: "",
    },
    Feature {
        name: "tiles of any multiple of 8 rows, clusters, split-K",
        proved: (
            YES,
            &["codegen/tests/warp/split_k.rs::every_sort_of_tile_is_split_along_k"],
        ),
        emulated: (
            YES,
            &["tests/hardware/tiles.rs::shared_steps_agree_with_the_reference_without_a_gpu"],
        ),
        gpus: (
            "1 H200",
            &[
                "tests/hardware/tiles.rs::every_sort_of_tile_agrees_with_the_reference_on_ragged_shapes",
            ],
        ),
        limits: "clusters and split-K only without communication",
    },
    Feature {
        name: "one process a rank: `counterflow-run`, torchrun, mpirun, srun",
        proved: (
            YES,
            &["runtime/tests/processes/main.rs::processes_that_ask_for_different_things_are_told"],
        ),
        emulated: (
            YES,
            &["tests/processes.rs::embed_runs_under_four_processes"],
        ),
        gpus: (
            "1 H200: 2 and 4 ranks; 2 H200",
            &["tests/hardware/jobs.rs::every_schedule_is_right_in_processes"],
        ),
        limits: "no srun was started",
    },
    Feature {
        name: "memory of other libraries: `adopt`, and windows of NCCL",
        proved: (NO, &[]),
        emulated: (
            "refused",
            &[
                "runtime/tests/emulated/refused.rs::memory_of_another_library_on_an_emulated_gpu_is_refused_to_all_and_they_go_on",
            ],
        ),
        gpus: (
            "1 H200: 1, 2 and 4 ranks; 2 H200",
            &[
                "tests/hardware/adopted.rs::launches_gather_into_memory_of_another_library",
                "tests/hardware/nccl.rs::launches_and_nccl_share_a_gpu",
            ],
        ),
        limits: "windows: a GPU each, 1 and 2 ranks, NCCL 2.32.3",
    },
    Feature {
        name: "FP8 operands (e4m3, one of two e5m2), with one scale, one a row, or one for 1×128 or 128×128; scales travel",
        proved: (
            YES,
            &["tests/schedules/fp8.rs::every_schedule_takes_every_kind_of_scales_or_says_why_not"],
        ),
        emulated: (
            YES,
            &["codegen/tests/tile/emulator/planes.rs::scales_of_blocks_travel_with_their_rows"],
        ),
        gpus: (
            "1 H200 and 1 H100: 1 to 4 ranks",
            &[
                "tests/hardware/right/fp8_blocks.rs::agrees",
                "tests/hardware/right.rs::fp8_sums_have_the_bits_of_the_emulator",
            ],
        ),
        limits: "layout nt",
    },
    Feature {
        name: "FP8 sums promoted every 128 of K",
        proved: (
            YES,
            &["codegen/tests/warp/promotion.rs::a_sum_that_is_lost"],
        ),
        emulated: (YES, &["codegen/tests/warp/promotion.rs::results_are_right"]),
        gpus: (
            "1 H200: 1 to 4 ranks with scales of blocks",
            &["tests/hardware/right/fp8_blocks.rs::bits_of_a_plain_gemm"],
        ),
        limits: "in clusters, or without scales of blocks: one rank",
    },
    Feature {
        name: "FP8 results with a given scale and amax, or with made scales; FP8 partial sums",
        proved: (
            YES,
            &[
                "codegen/tests/warp/made.rs::a_kernel_makes_scales",
                "codegen/tests/warp/partial.rs::a_kernel_sends_scales",
            ],
        ),
        emulated: (
            YES,
            &[
                "tests/hardware/right/narrow.rs::emulated_ranks_make_scales",
                "tests/hardware/right/partial.rs::emulated_ranks_send_partial_sums",
            ],
        ),
        gpus: (
            "1 H200: 1 to 4 ranks",
            &["tests/hardware/right/partial.rs::fp8_partial_sums_have_the_bits_of_the_emulator"],
        ),
        limits: "`mlp` with partial sums in FP8 is compiled only",
    },
    Feature {
        name: "cubecl's functions after a product (crate `counterflow-cube`)",
        proved: (
            YES,
            &["cube/tests/epilogue.rs::what_is_more_than_arithmetic_is_refused"],
        ),
        emulated: (
            "by a twin in Rust",
            &["cube/tests/epilogue.rs::emulated_ranks_agree_with_f64"],
        ),
        gpus: (
            "compiled only",
            &["tests/kernels/foreign.rs::products_with_a_foreign_function_pass_the_sass_checks"],
        ),
        limits: "Rust 1.92",
    },
    Feature {
        name: "quantisers (feature `quantise`)",
        proved: (NO, &[]),
        emulated: (
            YES,
            &["quantise/tests/twin.rs::layouts_hold_the_same_scales"],
        ),
        gpus: (
            "1 H100 and 1 H200, bit for bit",
            &[
                "quantise/tests/hardware/chunks.rs::ranks_that_share_a_gpu_quantise_a_chunk_each",
            ],
        ),
        limits: "a chunk with fewer rows than its plane is compiled only",
    },
];

/// The page as it must be.
fn page() -> String {
    let mut page = String::from(
        "# What works where\n\n\
         Generated by `UPDATE_DOCS=1 cargo test --test layering support` from the table of tests in `tests/layering/support.rs`.\n\n\
         - **proved**: `check` decides it before anything runs, for every interleaving, in these worlds (✓: in every world).\n\
         - **emulated**: the emulator's results equal a reference in f64, within the rounding of the types.\n\
         - **on GPUs**: the cards and worlds on which the hardware suite last compared it with the same reference. Several ranks on one \
         card share it.\n\n\
         NVLink multicast is not used. Which right schedules have no kernel: [`refused.md`](refused.md).\n\n\
         | feature | proved | emulated | on GPUs | limits |\n|---|---|---|---|---|\n",
    );
    for row in FEATURES {
        let (proved, emulated, gpus) = (row.proved.0, row.emulated.0, row.gpus.0);
        let (name, limits) = (row.name, row.limits);
        _ = writeln!(
            page,
            "| {name} | {proved} | {emulated} | {gpus} | {limits} |"
        );
    }
    page += "\n## Held by\n\n| feature | proved by | emulated by | run on GPUs by |\n|---|---|---|---|\n";
    for row in FEATURES {
        let cells = [row.proved.1, row.emulated.1, row.gpus.1].map(|tests| {
            let quoted = tests.iter().map(|test| format!("`{test}`"));
            quoted.collect::<Vec<_>>().join(", ")
        });
        _ = writeln!(page, "| {} | {} |", row.name, cells.join(" | "));
    }
    page
}

/// The tests that it names and that are not there.
fn gone(row: &Feature) -> Vec<&'static str> {
    let all = [row.proved.1, row.emulated.1, row.gpus.1].concat();
    let there = |test: &&str| {
        let (file, name) = test.split_once("::").expect("file::test");
        let file = root().join(file);
        file.is_file() && text(&file).contains(&format!("fn {name}("))
    };
    all.into_iter().filter(|test| !there(test)).collect()
}

#[test]
fn the_page_of_what_works_is_that_of_the_table() {
    let path = root().join(PAGE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).expect("written");
    }
    assert!(text(&path) == page(), "UPDATE_DOCS=1 writes {PAGE} again");
}

#[test]
fn each_feature_is_held_by_tests_that_are_there() {
    for row in FEATURES {
        assert!(gone(row).is_empty(), "{}: no {:?}", row.name, gone(row));
        for (says, tests) in [row.proved, row.emulated, row.gpus] {
            assert_eq!(says == NO, tests.is_empty(), "{}: {says}", row.name);
        }
    }
}

#[test]
fn the_check_sees_tests_that_are_not_there() {
    let row = Feature {
        name: "x",
        proved: (YES, &["tests/layering/support.rs::gone"]),
        emulated: (YES, &["tests/no_such_file.rs::gone"]),
        gpus: (YES, &[]),
        limits: "",
    };
    assert_eq!(gone(&row), ["tests/no_such_file.rs::gone"]);
}
