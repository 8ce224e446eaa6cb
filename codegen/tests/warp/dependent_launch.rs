//! Programmatic dependent launch: which kernels do, where their text lets the next launch come and awaits those before, and
//! the traces of waits that are missing or too late.

use crate::fixtures::library;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::{Machine, Sm};
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::sm90;
use counterflow_codegen::sm90::cta::dependent_launch;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::{Node, Pipeline};
use counterflow_emitter as cuda;
use counterflow_timeline::model::{outline, seconds};

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

fn built() -> Vec<Pipeline> {
    let build = |program: Program| {
        let variant = if program.name == "biased" {
            Variant::new(4)
        } else {
            Variant::new(4).set("tiles", (128, 128))
        };
        let kernel = lower(&program, &variant).and_then(verify::kernel).ok()?;
        sm90::build(&kernel).ok()
    };
    let all = library::all().into_iter().chain([biased()]);
    all.filter_map(build).collect()
}

fn named(name: &str) -> Pipeline {
    let mut all = built().into_iter();
    all.find(|pipeline| pipeline.kernel.name == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

fn refused(pipeline: Pipeline) -> String {
    let found = verify::pipeline(pipeline).expect_err("refused");
    found.first().text(&|_| String::new())
}

/// Without the wait of all warps, but with one in each role: before what it does, or after.
fn waits(mut pipeline: Pipeline, before: impl Fn(&str) -> Option<bool>) -> Pipeline {
    pipeline.start.clear();
    for warp in &mut pipeline.warps {
        match before(warp.name) {
            Some(true) => warp.body.insert(0, Node::AwaitLaunches),
            Some(false) => warp.body.push(Node::AwaitLaunches),
            None => {}
        }
    }
    pipeline
}

#[test]
fn kernels_without_communication_are_dependent_launches_and_no_others() {
    let (mut with, mut without) = (0, 0);
    for pipeline in built() {
        let communicates = pipeline.comm.is_some()
            || !pipeline.kernel.counters.is_empty()
            || pipeline
                .kernel
                .roles
                .iter()
                .any(|role| role.kind.sequential());
        assert_eq!(
            pipeline.dependent_launch, !communicates,
            "{}",
            pipeline.kernel.name
        );
        assert_eq!(
            pipeline.dependent_launch,
            dependent_launch::possible(&pipeline.kernel)
        );
        *if pipeline.dependent_launch {
            &mut with
        } else {
            &mut without
        } += 1;
    }
    assert!(with > 0 && without > 0, "{with} and {without}");
}

#[test]
fn the_text_lets_the_next_launch_come_at_once_and_waits_before_any_role() {
    for pipeline in built() {
        let Ok(pipeline) = verify::pipeline(pipeline) else {
            continue;
        };
        let text = text(&pipeline);
        let name = &pipeline.kernel.name;
        let count = |what: &str| text.matches(what).count();
        let wanted = usize::from(pipeline.dependent_launch);
        let lets_come = dependent_launch::lets_the_next_come(&pipeline.kernel);
        assert_eq!(
            count("launch_dependents();"),
            usize::from(lets_come),
            "{name}"
        );
        assert_eq!(count("wait_prerequisites();"), wanted, "{name}");
        if !pipeline.dependent_launch {
            continue;
        }
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("{name}: no {what}"))
        };
        let first = text
            .lines()
            .skip_while(|line| !line.ends_with("watch) {"))
            .nth(1);
        assert_eq!(first.map(str::trim), Some("launch_dependents();"), "{name}");
        assert!(
            at("mbarrier_init_fence();") < at("wait_prerequisites();"),
            "{name}"
        );
        assert!(
            at("wait_prerequisites();") < at("if (warp < 4) {"),
            "{name}"
        );
    }
}

fn text(pipeline: &Checked<Pipeline>) -> String {
    cuda::emit(pipeline).text
}

/// What the model says of `program` beside a machine whose launches are never hidden, in µs.
fn hidden(name: &str, (tile, m): ((u32, u32), u32)) -> (u32, f64) {
    let machine = Machine::h200();
    let shown = Machine {
        sm: Sm {
            dependent_launch_latency: machine.sm.launch_latency,
            ..machine.sm
        },
        ..machine.clone()
    };
    let program = library::all()
        .into_iter()
        .find(|program| program.name == name);
    let variant = Variant::new(2).set("tiles", tile);
    let kernel = lower(&program.expect("a schedule"), &variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    let plan = verify::plan(&kernel, &Shape::new(m, 2560, 1024), &machine);
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let [with, without] = [&machine, &shown].map(|machine| {
        let outline = outline(&kernel, &plan.shape, machine).expect("an outline");
        let seconds = seconds(&kernel, &plan, machine).expect("it ends");
        assert!(outline.least <= seconds);
        seconds * 1e6
    });
    (plan.grid.gemm + plan.grid.comm, without - with)
}

#[test]
fn the_model_hides_a_part_of_dependent_launches() {
    let near = |(ctas, saved): (u32, f64), wanted: (u32, f64)| {
        assert_eq!(ctas, wanted.0);
        assert!((saved - wanted.1).abs() < 1e-6, "{saved} µs of {ctas} CTAs");
    };
    near(hidden("gemm", ((128, 128), 768)), (120, 1.5));
    near(hidden("gemm", ((128, 128), 640)), (100, 0.0));
    near(hidden("ag_gemm", ((128, 128), 2048)), (132, 0.0));
}

#[test]
fn a_wait_that_is_missing() {
    insta::assert_snapshot!(refused(waits(named("gemm"), |_| None)), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = this is a dependent launch, and nothing says that earlier launches are complete
      help: await earlier launches before every access to global memory
    ");
}

#[test]
fn a_load_before_the_wait() {
    insta::assert_snapshot!(refused(waits(named("gemm"), |role| Some(role != "load"))), @"
    error[race]: load of block 0 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0 into x of stage 0 for tile (0, 0)
      = this is a dependent launch, and nothing says that earlier launches are complete
      help: await earlier launches before every access to global memory
    ");
}

#[test]
fn a_vector_before_the_wait() {
    let pipeline = named("biased");
    insta::assert_snapshot!(refused(waits(pipeline, |role| Some(role != "multiply"))), @"
    error[race]: multiply of block 0 on rank 0 reads bias ahead, from number 0 on for tile (0, 0)
      = this is a dependent launch, and nothing says that earlier launches are complete
      help: await earlier launches before every access to global memory
    ");
}

#[test]
fn a_warp_that_ends_without_the_wait() {
    let pipeline = waits(named("gemm"), |role| (role != "multiply").then_some(true));
    insta::assert_snapshot!(refused(pipeline), @"
    error[race]: multiply of block 0 on rank 0 ends while earlier launches may still run
      = the next launch waits for this one only, and would start although earlier ones still run
      help: every warp awaits earlier launches
    ");
}

/// Its roles may wait one by one: the rule is about each of them.
#[test]
fn a_wait_in_each_role_will_do() {
    verify::pipeline(waits(named("gemm"), |_| Some(true))).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_kernel_that_communicates() {
    let mut pipeline = named("ag_gemm");
    pipeline.dependent_launch = true;
    pipeline.start.push(Node::AwaitLaunches);
    insta::assert_snapshot!(refused(pipeline), @"
    error[progress]: a kernel that communicates starts before the previous launch has ended
      help: only kernels without counters, copies and CTAs that move data are dependent launches
    ");
}

#[test]
fn a_grid_has_no_more_ctas_than_its_rounds_need() {
    let kernel = lower(&biased(), &Variant::new(1)).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{found}"));
    let ctas = |m, n| {
        let plan = verify::plan(&kernel, &Shape::new(m, n, 1024), &Machine::h200());
        plan.unwrap_or_else(|found| panic!("{found}")).grid.gemm
    };
    assert_eq!(ctas(1024, 1024), 64);
    // 1024 tiles are eight rounds of 128, not seven of 132 and one of 100.
    assert_eq!(ctas(4096, 4096), 128);
    // 160 would be two rounds of 80, too few for a dependent launch.
    assert_eq!(ctas(2048, 1280), 132);
}

#[test]
fn it_pays_where_it_was_measured_to() {
    assert!(
        [112, 128, 132]
            .iter()
            .all(|ctas| dependent_launch::pays(*ctas, 132))
    );
    assert!(!dependent_launch::pays(80, 132));
}
