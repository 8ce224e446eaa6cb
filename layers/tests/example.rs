//! The examples on emulated ranks: what users know from TransformerEngine, and the times of layers.

#[path = "../examples/layer_times/apart.rs"]
mod apart;
#[path = "../examples/layer/wait.rs"]
mod wait;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use counterflow::{Communicator, Error, prelude::bf16};
use std::cell::Cell;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

/// What `cargo test` builds.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("this program");
    path.pop();
    path.pop();
    path.push(format!("examples/{name}"));
    let help = "`cargo build -p counterflow-layers --examples` builds it, and so does `cargo test`";
    assert!(path.exists(), "{help}");
    path
}

fn run(arguments: &str) -> Output {
    run_of("layer", arguments)
}

fn run_of(name: &str, arguments: &str) -> Output {
    command_of(name, arguments).output().expect("started")
}

fn command_of(name: &str, arguments: &str) -> Command {
    let mut command = Command::new(example(name));
    command.args(arguments.split_whitespace());
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn text(of: &[u8]) -> String {
    String::from_utf8_lossy(of).into_owned()
}

/// All with `WIDE=1`, else the first.
fn some<const N: usize>(all: [&'static str; N]) -> impl Iterator<Item = &'static str> {
    all.into_iter().take(if wide::wide() { N } else { 1 })
}

/// Each batch is another one, so the loss falls in the mean of two.
fn falls(losses: &[f64]) -> bool {
    let (first, last) = (&losses[..2], &losses[losses.len() - 2..]);
    last.iter().sum::<f64>() < 0.95 * first.iter().sum::<f64>()
}

/// The losses that it prints.
fn losses(of: &str) -> Vec<f64> {
    let lines = of.lines().filter_map(|line| line.split("|-- loss ").nth(1));
    lines.map(|loss| loss.parse().expect("a number")).collect()
}

#[test]
fn the_loss_falls_with_and_without_overlap() {
    let small = "--ranks 2 --iters 6 --seq-length 16 --hidden 32 --num-heads 4 --head-dim 8";
    for layer in some(["LayerNormMLP", "TransformerLayer"]) {
        let arguments = format!("{small} --layer-type {layer}");
        let [on, off] = ["", "--no-comm-overlap"].map(|more| {
            let done = run(&format!("{arguments} {more}"));
            assert!(done.status.success(), "{}", text(&done.stderr));
            text(&done.stdout)
        });
        let fell = losses(&on);
        assert_eq!(fell.len(), 6, "{on}");
        assert!(falls(&fell), "{fell:?}");
        assert_eq!(fell, losses(&off), "the same numbers");
        let steps = [
            "Generate random input batch",
            "Forward pass",
            "Compute loss",
            "Backward pass",
            "Optimizer step",
        ];
        for step in steps {
            assert!(
                on.contains(&format!("[rank0:node0] |-- {step}")),
                "{step}: {on}"
            );
        }
        assert!(on.contains("Created tensor-parallel group: [0, 1]"), "{on}");
        assert!(
            on.contains("fused") && !off.contains(", fused"),
            "{on}\n{off}"
        );
        // What overlap saves, by the definition of its efficiency; without overlap there is nothing to tell.
        let number = |before: &str, after: &str| {
            let rest = on
                .split(before)
                .nth(1)
                .unwrap_or_else(|| panic!("{before}: {on}"));
            let number = rest.split(after).next().unwrap_or_default();
            number
                .parse::<f64>()
                .unwrap_or_else(|_| panic!("{before}: {number}"))
        };
        let sequential = number("Step without overlap: ", " ms");
        let (moved, overlapped) = (
            number("of which communication: ", " ms"),
            number("Step with overlap: ", " ms"),
        );
        let (saved, efficiency) = (
            number("Time saved: ", " ms"),
            number("overlap efficiency: ", " %"),
        );
        assert!((saved - (sequential - overlapped)).abs() <= 0.002, "{on}");
        // Numbers have three digits behind the point, and percentages one.
        let hidden = efficiency / 100.0 * moved;
        let rounded = 0.001 + efficiency.abs() / 100.0 * 0.0006 + 0.0006 * moved;
        assert!((hidden - saved).abs() <= rounded, "{hidden}: {on}");
        assert!(
            on.contains("the emulator's") && !off.contains("overlap efficiency"),
            "{on}\n{off}"
        );
    }
}

#[test]
fn the_loss_falls_in_fp8_by_each_recipe() {
    let small = "--ranks 2 --iters 6 --seq-length 16 --hidden 32 --num-heads 4 --head-dim 8";
    for recipe in some(["--fp8=blocks", "--fp8", "--fp8=current"]) {
        let done = run(&format!("{small} {recipe}"));
        assert!(done.status.success(), "{recipe}: {}", text(&done.stderr));
        let said = text(&done.stdout);
        let fell = losses(&said);
        assert_eq!(fell.len(), 6, "{said}");
        assert!(falls(&fell), "{recipe}: {fell:?}");
        let fused = said
            .lines()
            .any(|line| line.contains("fused") && line.contains("e4m3"));
        assert!(fused, "{recipe}: {said}");
    }
}

#[test]
fn two_replicas_learn_together() {
    let done = run(
        "--ranks 4 --num-replicas 2 --iters 6 --seq-length 6 --hidden 32 --num-heads 4 --head-dim 8 --layer-type MultiheadAttention",
    );
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    for group in [
        "tensor-parallel group: [0, 1]",
        "tensor-parallel group: [2, 3]",
        "data-parallel group: [0, 2]",
        "data-parallel group: [1, 3]",
    ] {
        assert!(said.contains(group), "{group}: {said}");
    }
    let fell = losses(&said);
    assert_eq!(fell.len(), 6, "{said}");
    assert!(falls(&fell), "{fell:?}");
}

/// As torchrun starts them: a process for each rank, two replicas of two ranks; or without `WIDE=1` two ranks, since each process
/// chooses its ops by itself.
#[test]
fn processes_learn_what_threads_do() {
    let (world, replicas) = if wide::wide() { (4, 2) } else { (2, 1) };
    let small = format!(
        "--num-replicas {replicas} --iters 2 --seq-length 6 --hidden 32 --num-heads 4 --head-dim 8 --layer-type LayerNormMLP"
    );
    let threads = run(&format!("--ranks {world} {small}"));
    assert!(threads.status.success(), "{}", text(&threads.stderr));
    let job = format!("the example of layers of {}", std::process::id());
    // One that is free now, of those that the system gives.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let start = |rank: u32| {
        let mut command = command_of("layer", &small);
        for name in ["RANK", "LOCAL_RANK"] {
            command.env(name, rank.to_string());
        }
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            command.env(name, world.to_string());
        }
        command
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        command.env("TORCHELASTIC_RUN_ID", &job);
        let command = command.stdout(std::process::Stdio::piped());
        command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("started")
    };
    let ranks: Vec<_> = (0..world).map(start).collect();
    let mut said = String::new();
    for rank in ranks {
        let done = rank.wait_with_output().expect("ended");
        assert!(done.status.success(), "{}", text(&done.stderr));
        said += &text(&done.stdout);
    }
    let found = losses(&said);
    assert_eq!(found.len(), 2, "{said}");
    assert_eq!(found, losses(&text(&threads.stdout)));
}

/// What averages over replicas begins when a part's gradients are enqueued, before the rest of the backward pass is, and is awaited before
/// the optimizer.
#[test]
fn averages_begin_before_the_rest_of_the_backward_pass_is_enqueued() {
    let done = run(
        "--ranks 4 --num-replicas 2 --num-layers 2 --iters 2 --seq-length 6 --hidden 32 --num-heads 4 --head-dim 8 --verbose",
    );
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    for rank in ["[rank0:node0]", "[rank2:node1]"] {
        let own = said.lines().filter_map(|line| line.strip_prefix(rank));
        let own: Vec<&str> = own.map(str::trim).collect();
        let steps: Vec<_> = own
            .split(|line| line.starts_with("Iter "))
            .skip(1)
            .collect();
        assert_eq!(steps.len(), 2, "{said}");
        for step in steps {
            let from = step.iter().position(|line| *line == "|-- Backward pass");
            let to = step.iter().position(|line| *line == "|-- Optimizer step");
            let (from, to) = from.zip(to).unwrap_or_else(|| panic!("{step:?}"));
            let part = |line: &&str| {
                let (what, launches) = line
                    .strip_prefix("|-- Averages ")?
                    .strip_suffix(" launches")?
                    .split_once(" behind ")?;
                Some((what.to_owned(), launches.parse::<u64>().ok()?))
            };
            let told: Vec<_> = step[from..to].iter().filter_map(part).collect();
            let (parts, launches): (Vec<_>, Vec<_>) = told.into_iter().unzip();
            let wanted = [
                "of the MLP of layer 2 begun",
                "of the attention of layer 2 begun",
                "of the MLP of layer 1 begun",
                "of the attention of layer 1 begun",
                "awaited",
            ];
            assert_eq!(parts, wanted, "{step:?}");
            // Each but the last begins while there is more of the pass to enqueue.
            assert!(launches[..4].is_sorted_by(|a, b| a < b), "{launches:?}");
            assert_eq!(launches[3], launches[4], "{launches:?}");
        }
    }
    let averaged = said.matches("12 averages over replicas").count();
    assert_eq!(averaged, 4, "{said}");
}

/// Nothing of NCCL is loaded before every variable that keeps libraries off multicast is set.
#[test]
fn nccl_averages_only_where_multicast_is_forbidden() {
    let off = [
        ("UB_SKIPMC", "1"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
        ("CUBLASMP_DISABLE_MULTICAST", "1"),
    ];
    let told = |set: &[(&str, &str)]| {
        let mut command = Command::new(example("layer"));
        let small =
            "--ranks 2 --num-replicas 2 --nccl --iters 1 --seq-length 4 --hidden 32 --head-dim 8";
        command
            .args(small.split(' '))
            .env("CUDA_VISIBLE_DEVICES", "");
        for (name, _) in off {
            command.env_remove(name);
        }
        let done = command.envs(set.iter().copied()).output().expect("started");
        assert!(!done.status.success());
        text(&done.stderr)
    };
    for (at, (name, value)) in off.iter().enumerate() {
        let mut set = off.to_vec();
        set.remove(at);
        let said = told(&set);
        assert!(said.contains("might use multicast"), "{said}");
        assert!(
            said.contains(&format!("set {name}={value} first")),
            "{said}"
        );
    }
    let said = told(&off);
    assert!(said.contains("--nccl on emulated ranks"), "{said}");
    // NCCL takes no more SMs than products leave.
    let more = [&off[..], &[("NCCL_MAX_CTAS", "16")]].concat();
    let said = told(&more);
    assert!(
        said.contains("NCCL_MAX_CTAS, which NCCL takes before"),
        "{said}"
    );
}

/// What NCCL does never ends where a replica is gone: a kernel of its own waits for it.
#[test]
fn a_sum_that_never_ends_is_given_up() {
    let long = Duration::from_secs(600);
    let told = |result: Result<(), Error>| result.expect_err("given up").to_string();
    let never = || Ok(false);

    // A replica ended: at once, by the end of their communicator.
    let replicas = Communicator::emulated(2).expect("two");
    let alive = || replicas[0].synchronize();
    let asked = Cell::new(0);
    let ends_later = || {
        asked.set(asked.get() + 1);
        if asked.get() == 5 {
            replicas[1].abort("its host is gone");
        }
        alive()
    };
    let error = told(wait::until("a sum", long, never, ends_later));
    assert_eq!(error, "rank 1 ended the communicator: its host is gone");

    // A replica hangs: at the limit.
    let error = told(wait::until("a sum", Duration::ZERO, never, || Ok(())));
    assert_eq!(error, "a sum took longer than 0ns");

    // The library told an error, or was done.
    let refused = || {
        Err(Error::Aborted {
            what: "NCCL's own".into(),
            help: String::new(),
        })
    };
    let error = told(wait::until("a sum", long, refused, || Ok(())));
    assert_eq!(error, "NCCL's own");
    let asked = Cell::new(0);
    let third = || {
        asked.set(asked.get() + 1);
        Ok(asked.get() == 3)
    };
    wait::until("a sum", Duration::ZERO, third, || Ok(())).expect("done before anything is asked");
}

#[test]
fn what_is_not_there_is_refused() {
    let table = [
        ("--fp8=mxfp8", "mxfp8"),
        ("--layer-type GroupedLinear", "GroupedLinear"),
        ("--ranks 3 --num-replicas 2", "3 ranks in 2 replicas"),
        ("--config no/such/file.yaml", "no/such/file.yaml"),
        ("--num-heads 3", "3 heads"),
        ("--num-layers 0", "no layer"),
    ];
    for (arguments, wanted) in table {
        let done = run(&format!(
            "--iters 1 --seq-length 4 --hidden 32 --head-dim 8 {arguments}"
        ));
        assert!(!done.status.success(), "{arguments}");
        let said = text(&done.stderr);
        assert!(said.contains(wanted), "{arguments}: {said}");
    }
}

/// Each case is compared and timed; what is not asked for is not there. Emulated ranks have no graphs of layers, and it says so.
#[test]
fn layers_are_compared_and_timed() {
    let file = std::env::temp_dir().join(format!("layer_times_{}.json", std::process::id()));
    let only = match wide::wide() {
        true => "bf16.16.none.qkvproj,bf16.16.p2p.qkvproj,fp8bl.16.auto.swiglu",
        false => "bf16.16.none.swiglu,fp8bl.16.auto.qkvproj",
    };
    let arguments = format!(
        "--emulated --samples 3 --warm 0 --only {only} --json {}",
        file.display()
    );
    let done = run_of("layer_times", &arguments);
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{said}");
    let found = std::fs::read_to_string(&file).expect("results");
    drop(std::fs::remove_file(&file));
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    let results = found["results"].as_object().expect("cases");
    assert_eq!(
        Vec::from_iter(results.keys()),
        Vec::from_iter(only.split(','))
    );
    for (name, of) in results {
        let is_attention = name.ends_with("qkvproj");
        let cells = of["cells"].as_object().expect("cells");
        let kinds = if is_attention {
            &["f", "b", "q", "p"][..]
        } else {
            &["f", "b"]
        };
        assert_eq!(cells.len(), 2 * kinds.len(), "{name}: {cells:?}");
        for kind in kinds
            .iter()
            .flat_map(|kind| [format!("{kind}e"), format!("{kind}h")])
        {
            let cell: Vec<f64> = serde_json::from_value(cells[&kind].clone()).expect("numbers");
            let [median, p10, p90] = cell[..] else {
                panic!("{name} {kind}: {cell:?}");
            };
            assert!(
                0.0 < p10 && p10 <= median && median <= p90,
                "{name} {kind}: {cell:?}"
            );
        }
        assert!(of["graph_error"].is_string(), "{name}");
        let taken: Vec<f64> = serde_json::from_value(of["taken"].clone()).expect("numbers");
        assert_eq!(
            taken,
            vec![0.0; 2 * kinds.len()],
            "{name}: steps allocate or wait"
        );
        for key in ["err", "err2"] {
            // Overlap changes no bit.
            let apart: Option<[f64; 4]> = serde_json::from_value(of[key].clone()).expect("numbers");
            let wanted = (!name.contains(".none.")).then_some([0.0; 4]);
            assert_eq!(apart, wanted, "{name} {key}");
        }
        let fused = of["products"].as_array().expect("products").iter();
        let fused = fused.filter(|product| product.as_str().expect("a text").contains(", fused"));
        assert_eq!(fused.count() > 0, !name.contains(".none."), "{name}");
    }
    let none = run_of("layer_times", "--emulated --only bf16.7");
    assert!(!none.status.success(), "nothing was timed");
}

/// The program alone: all that it compares and times is there, once. On an emulated rank a kernel is its twin, so that their bits are
/// compared on GPUs only.
#[test]
fn side_kernels_are_compared_and_timed() {
    let file = std::env::temp_dir().join(format!("side_times_{}.json", std::process::id()));
    let arguments = format!("--emulated --samples 2 --json {}", file.display());
    let done = run_of("side_times", &arguments);
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{said}");
    let found = std::fs::read_to_string(&file).expect("results");
    drop(std::fs::remove_file(&file));
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    let found = found.as_object().expect("kernels");
    let of_norms = ["", "_backward"].into_iter();
    let wanted = of_norms
        .flat_map(|part| ["rms_norm", "layer_norm"].map(|norm| format!("{norm}{part}")))
        .chain(
            ["swiglu", "gelu"]
                .into_iter()
                .flat_map(|of| [of.into(), format!("{of}_backward")]),
        )
        .chain(
            [
                "residual_add",
                "dropout_add",
                "dropout_backward",
                "rope",
                "cross_entropy",
            ]
            .map(String::from),
        );
    let mut wanted: Vec<String> = wanted.map(|name| format!("66.{name}")).collect();
    wanted.sort();
    let mut names: Vec<&String> = found.keys().collect();
    names.sort();
    assert_eq!(names, wanted.iter().collect::<Vec<_>>());
    for (name, of) in found {
        for key in ["ms", "copy_ms", "of_copy"] {
            let spread: [f64; 3] = serde_json::from_value(of[key].clone()).expect("numbers");
            assert!(
                spread[1] <= spread[0] && spread[0] <= spread[2] && spread[1] > 0.0,
                "{name}: {of}"
            );
        }
        assert!(
            said.contains(&format!("{name} ")) && !said.contains("WRONG"),
            "{said}"
        );
    }
    assert!(
        !run_of("side_times", "--emulated --only nothing")
            .status
            .success()
    );
}

/// A run that is cut off has the results of the cases that it timed.
#[test]
fn results_are_there_after_each_case() {
    let file = std::env::temp_dir().join(format!("layer_times_cut_{}.json", std::process::id()));
    let only = "bf16.16.none.qkvproj,bf16.16.p2p.qkvproj,bf16.16.auto.qkvproj";
    let arguments = format!(
        "--emulated --samples 3 --warm 0 --together 1 --only {only} --json {}",
        file.display()
    );
    let mut run = command_of("layer_times", &arguments)
        .spawn()
        .expect("a process");
    let found = loop {
        let ended = run.try_wait().expect("a process").is_some();
        if let Ok(text) = std::fs::read_to_string(&file) {
            break serde_json::from_str::<serde_json::Value>(&text).expect("whole results");
        }
        assert!(!ended, "it ended without results");
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    drop(run.kill());
    drop(run.wait());
    drop(std::fs::remove_file(&file));
    let results = found["results"].as_object().expect("cases");
    // Those that users ask for first come first.
    assert_eq!(Vec::from_iter(results.keys()), ["bf16.16.none.qkvproj"]);
    assert!(
        results.values().all(|of| of["cells"].is_object()),
        "{found}"
    );
}

#[test]
fn results_that_are_apart_or_no_numbers_are_seen() {
    let rank = &Communicator::emulated(1).expect("a rank")[0];
    let tensor = |changed: Option<(usize, f32)>| {
        let mut values = [bf16::from_f32(2.0); 130 * 8];
        if let Some((at, value)) = changed {
            values[at] = bf16::from_f32(value);
        }
        let tensor = rank.zeros::<bf16>([130, 8])?;
        tensor.write(&values)?;
        Ok::<_, Error>(tensor)
    };
    let apart = |changed, part| {
        let mut apart = apart::Apart::default();
        apart.add((&tensor(changed)?, &tensor(None)?), part, bf16::to_f64)?;
        Ok::<_, Error>([apart.norm, apart.most])
    };
    assert_eq!(apart(None, 1).expect("read"), [0.0; 2]);
    let [norm, most] = apart(Some((129 * 8, 3.0)), 1).expect("read");
    assert_eq!(most, 0.5);
    assert!(
        (norm - 1.0 / (4.0 * 1040f64).sqrt()).abs() < 1e-12,
        "{norm}"
    );
    for value in [f32::NAN, f32::INFINITY] {
        let found = apart(Some((7, value)), 1).expect("read");
        assert!(found.iter().all(|of| !of.is_finite()), "{found:?}");
    }
    // Of three blocks of 64 rows, the second is left out.
    assert_eq!(apart(Some((64 * 8, f32::NAN)), 2).expect("read"), [0.0; 2]);
    assert!(apart(Some((128 * 8, f32::NAN)), 2).expect("read")[0].is_nan());
}
