//! Operands that are declared constant: loaded before earlier launches are awaited, as many steps as there are stages, and
//! nothing else is.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::sm90;
use counterflow_codegen::sm90::cta::dependent_launch;
use counterflow_codegen::variant::{Layout, Scales, Variant};
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{Expr, Map, Node, Pipeline};
use counterflow_emitter as cuda;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

/// `gemm` with weights that are constant, one launch in a world of one.
fn weights() -> Variant {
    Variant::new(1).set("tiles", (128, 128)).constant("w")
}

fn built(program: &Program, variant: &Variant) -> Pipeline {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{variant}: {found}"));
    sm90::build(&kernel).unwrap_or_else(|found| panic!("{variant}: {found}"))
}

fn right(program: &Program, variant: &Variant) -> Checked<Pipeline> {
    verify::pipeline(built(program, variant)).unwrap_or_else(|found| panic!("{variant}: {found}"))
}

fn refused(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// What is said where `change` changes some of the nodes.
fn changed(change: impl Fn(&mut Vec<Node>, &[Map]) -> bool) -> String {
    let mut pipeline = built(&program("gemm"), &weights());
    let (maps, mut done) = (pipeline.maps.clone(), false);
    pipeline.lists(&mut |list| done |= change(list, &maps));
    assert!(done, "nothing to change");
    refused(pipeline)
}

#[test]
fn a_kernel_without_constants_is_as_it_was() {
    let gemm = program("gemm");
    let plain = Variant::new(1).set("tiles", (128, 128));
    let text = |variant: &Variant| cuda::emit(&right(&gemm, variant)).text;
    assert!(!text(&plain).contains("what is constant"));
    assert_eq!(right(&gemm, &plain).start, [Node::AwaitLaunches]);
    // Declared, but no operand of a product: nothing is loaded early.
    let biased = biased();
    let text = |variant: &Variant| cuda::emit(&right(&biased, variant)).text;
    let plain = Variant::new(1);
    assert_eq!(text(&plain), text(&plain.clone().constant("bias")));
}

/// A product with a vector added to each row.
fn biased() -> Program {
    let mut s = ScheduleBuilder::new("biased");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let bias = s.vector("bias", Bf16);
    let tiles = s.tiles("tiles", y, (128, 128));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let bias = s.load(bias);
            s.store(y.at(t), product.bias(bias));
        });
    });
    s.finish()
}

fn product(tile: (u32, u32), options: GemmOptions) -> Program {
    let mut s = ScheduleBuilder::new("product");
    let (x, w, y) = (s.local("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(options, |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    s.finish()
}

/// All that has no communication, in every way that a CTA computes a tile.
#[test]
fn whatever_computes_a_tile_loads_its_constants_first() {
    let (none, gemm) = (GemmOptions::default(), program("gemm"));
    let tile = |tile| product(tile, GemmOptions::default());
    let with = |options| product((128, 128), options);
    for program in [
        tile((128, 64)),
        tile((208, 128)),
        with(GemmOptions {
            ping_pong: Some(true.into()),
            ..none.clone()
        }),
        with(GemmOptions {
            cluster: Some((2, 1).into()),
            ..none.clone()
        }),
        with(GemmOptions {
            cluster: Some((1, 2).into()),
            ..none.clone()
        }),
        with(GemmOptions {
            split: Some(2.into()),
            ..none.clone()
        }),
        with(GemmOptions {
            stages: Some(2.into()),
            ..none
        }),
    ] {
        let variant = Variant::new(1).constant("w");
        loads_first(&program, &variant);
        loads_first(&program, &variant.layout(Layout::Nn));
    }
    let fp8 = |scales| weights().dtype(E4M3).scales(scales);
    for variant in [
        weights(),
        fp8(Scales::PerTensor),
        fp8(Scales::PerRow),
        fp8(Scales::Blocks1d2d),
        fp8(Scales::Blocks1d1d),
        Variant::new(1).set("tiles", (128, 128)).constant("x"),
        weights().constant("x"),
    ] {
        loads_first(&gemm, &variant);
    }
    loads_first(&biased(), &Variant::new(1).constant("w"));
}

fn loads_first(program: &Program, variant: &Variant) {
    let pipeline = right(program, variant);
    let early = dependent_launch::loaded_early(&pipeline.kernel);
    assert_eq!(early.len(), variant.constants.len(), "{variant}");
    assert!(pipeline.dependent_launch && pipeline.start.is_empty());
    let text = cuda::emit(&pipeline).text;
    let load = text.find("{  // load").expect("a role that loads");
    let load = &text[load..text.find("{  // store").expect("a role that stores")];
    let first = load.find("tma_load").expect("a load");
    let wait = load.find("wait_prerequisites();").expect("a wait");
    assert!(first < wait, "{variant}\n{load}");
    let expect = load.find(".expect(").expect("an arrival");
    assert!(
        wait < expect,
        "{variant}: bytes are announced after the wait"
    );
}

#[test]
fn the_text_of_the_role_that_loads() {
    let text = cuda::emit(&right(&program("gemm"), &weights())).text;
    let start = text.find("{  // load").expect("a role");
    let end = text.find("{  // store").expect("a role");
    insta::assert_snapshot!(&text[start..end], @"
    {  // load
                TileScheduler scheduler(blockIdx.x, gridDim.x);
                PipelineState<STAGES> stage;
                const u32 tiles_m = ceil_div(plan.m, TILE_M);
                const u32 tiles = tiles_m * tiles_n;
                for (; scheduler.has(tiles); scheduler.next()) {
                    const Tile t = grouped_8(scheduler.tile(), tiles_m, tiles_n);
                    // acc0 += dot(x[t.rows, :], w[t.columns, :])
                    const u32 x_rows = min(ceil_div(plan.m - t.row * TILE_M, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_M);
                    const u32 w_rows =
                        min(ceil_div(plan.n - t.column * TILE_N, PARTIAL_BOX_ROWS) * PARTIAL_BOX_ROWS, TILE_N);
                    // In its first tile a CTA fills all stages with what is constant, then awaits the launches before.
                    const u32 filled = min(steps, STAGES * (1 - min(scheduler.tile() / gridDim.x, 1)));
                    const auto stage_before = stage;
                    #pragma unroll 1
                    for (u32 step = 0; step < filled; ++step) {
                        stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                        const auto full = stage_full[stage.index];
                        tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows, full.at,
                            step * TILE_K, t.column * TILE_N);
                        stage.advance();
                    }
                    stage = stage_before;
                    wait_prerequisites();
                    #pragma unroll 1
                    for (u32 step = 0; step < steps; ++step) {
                        const auto full = stage_full[stage.index];
                        if (step >= filled) {
                            stage_empty[stage.index].wait(stage.phase ^ 1, watch, LOAD);
                            tma_load_partial<PARTIAL_BOX_ROWS, TILE_N>(smem_w[stage.index], w, w_partial_box, w_rows,
                                full.at, step * TILE_K, t.column * TILE_N);
                        }
                        full.expect(x_rows * TILE_K * 2 + w_rows * TILE_K * 2);
                        tma_load_partial<PARTIAL_BOX_ROWS, TILE_M>(smem_x[stage.index], x, x_partial_box, x_rows, full.at,
                            step * TILE_K, t.row * TILE_M);
                        stage.advance();
                    }
                }
                // So does a CTA without tiles: the next launch waits for this one alone.
                wait_prerequisites();
            } else if (warp == 1 && elect_one())
    ");
}

/// What is not declared is loaded in place of what is.
#[test]
fn another_operand_before_the_wait() {
    let other = changed(|list, maps| {
        let mut done = false;
        for node in list {
            if let Node::Ahead { body, .. } = node
                && let Some(Node::For { body, .. }) = body.first_mut()
            {
                for node in body {
                    if let Node::Load { map, .. } = node {
                        let x = maps.iter().position(|map| map.name == "x").expect("x");
                        map.0 = x as u16;
                        done = true;
                    }
                }
            }
        }
        done
    });
    insta::assert_snapshot!(other, @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0 into w of stage 0 for tile (0, 0)
      = this is a dependent launch, and nothing says that earlier launches are complete
      help: await earlier launches before every access to global memory
    ");
}

/// The warp that loads does not wait behind its early loads.
#[test]
fn a_wait_that_is_missing_behind_the_early_loads() {
    let missing = changed(|list, _| {
        let behind = |at: usize| at > 0 && matches!(list[at - 1], Node::Ahead { .. });
        let wait = (0..list.len()).find(|at| list[*at] == Node::AwaitLaunches && behind(*at));
        wait.map(|at| list.remove(at)).is_some()
    });
    insta::assert_snapshot!(missing, @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = this is a dependent launch, and nothing says that earlier launches are complete
      help: await earlier launches before every access to global memory
    ");
}

/// Another warp does not wait: the vector that it reads may still be written.
#[test]
fn a_vector_before_the_wait() {
    let mut pipeline = built(&biased(), &Variant::new(1).constant("w"));
    let multiply = pipeline.warps.iter_mut();
    let multiply = multiply.into_iter().find(|warp| warp.name == "multiply");
    let first = multiply.expect("a role that multiplies").body.remove(0);
    assert_eq!(first, Node::AwaitLaunches);
    insta::assert_snapshot!(refused(pipeline), @"
    error[race]: multiply of block 0 on rank 0 reads bias ahead, from number 0 on for tile (0, 0)
      = this is a dependent launch, and nothing says that earlier launches are complete
      help: await earlier launches before every access to global memory
    ");
}

/// More stages than there are, before any of them can be released.
#[test]
fn more_steps_ahead_than_there_are_stages() {
    let more = changed(|list, _| {
        let mut done = false;
        for node in list {
            if let Node::Let { name, value } = node
                && name == "filled"
            {
                *value = Expr::var("steps");
                done = true;
            }
        }
        done
    });
    insta::assert_snapshot!(more, @"
    error[progress]: load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load of block 0 on rank 0 waits for a stage to be empty for tile (0, 0)
      = store of block 0 on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply of block 0 on rank 0 waits for a stage to be full
      = multiply of block 0 on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (1, 0)
    ");
}

fn not_constant(name: &str, tensor: &str) -> String {
    let variant = Variant::new(2).set("tiles", (128, 128)).constant(tensor);
    let found = lower(&program(name), &variant).and_then(verify::kernel);
    let found = found.expect_err("refused");
    found.first().text(&|_| String::new())
}

#[test]
fn an_output_is_not_constant() {
    insta::assert_snapshot!(not_constant("gemm", "y"), @"
    error[race]: `y` is declared constant, but a launch writes it
      = constant operands are loaded while the launches before may still run
      help: only an input that stays on its rank may be constant, such as weights
    ");
}

#[test]
fn rows_that_peers_send_are_not_constant() {
    insta::assert_snapshot!(not_constant("ag_gemm", "x"), @"
    error[race]: `x` is declared constant, but a launch writes it
      = constant operands are loaded while the launches before may still run
      help: only an input that stays on its rank may be constant, such as weights
    ");
}

#[test]
fn a_tensor_that_is_not_there_is_not_constant() {
    insta::assert_snapshot!(not_constant("gemm", "weights"), @"
    error[shape]: gemm has no tensor `weights` to be constant
      help: its inputs are x, w
    ");
}

/// A kernel that waits for peers is no dependent launch: it loads nothing before earlier launches have ended.
#[test]
fn constants_of_a_kernel_that_communicates_change_nothing() {
    let variant = Variant::new(2).set("tiles", (128, 128));
    let text = |variant: &Variant| cuda::emit(&right(&program("ag_gemm"), variant)).text;
    assert_eq!(text(&variant), text(&variant.clone().constant("w")));
}
