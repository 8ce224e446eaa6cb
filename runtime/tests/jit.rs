//! The compiler for real: NVRTC on small texts, the cache around it, and every SASS check made to fire.

mod common;
#[path = "../../codegen/tests/fixtures/wide.rs"]
mod wide;

use common::{compiler, folder, sass, sass_of_all};
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::Error;
use counterflow_runtime::family::Collective;
use counterflow_runtime::jit::sass::Sass;
use counterflow_runtime::jit::sass_checks;
use counterflow_runtime::jit::{Cache, Cached, Compiled, Source, Target};
use counterflow_runtime::launch::compile_exchange;

const FINE: &str = r#"
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
fine(float* y, const float* x, unsigned n) {
    __shared__ float kept[256];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    kept[threadIdx.x % 256] = i < n ? x[i] : 0.f;
    __syncthreads();
    if (i < n) y[i] = kept[255 - threadIdx.x % 256];
}
"#;

/// More live values than 32 registers hold.
const SPILLS: &str = r#"
extern "C" __global__ void __maxnreg__(32) spills(float* y, const float* x) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = x[i * 97 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; ++i) y[(i * 31 + threadIdx.x) % 96] = v[i] * v[95 - i];
}
"#;

/// The one thread is not known to be one: a loop over lanes guards each instruction.
const LOOPS: &str = r#"
struct alignas(128) Map { unsigned long long opaque[16]; };
extern "C" __global__ void loops(const __grid_constant__ Map map, int steps) {
    __shared__ __align__(1024) char tile[4 * 8192];
    __shared__ unsigned long long full[4];
    unsigned at = (unsigned)__cvta_generic_to_shared(tile), barrier = (unsigned)__cvta_generic_to_shared(full);
    if (threadIdx.x == 0)
        for (int step = 0; step < steps; ++step)
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(at + step % 4 * 8192), "l"(&map), "r"(step * 64), "r"(0), "r"(barrier + step % 4 * 8) : "memory");
}
"#;

/// An accumulator touched before the wait: the compiler serialises the multiplies, and says so.
const SERIAL: &str = r#"
extern "C" __global__ void __launch_bounds__(128, 1) serial(float* y, unsigned long long a, unsigned long long b) {
    float d[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) {
        asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b + i));
        d[0] += 1.f;
    }
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
    y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"#;

fn compile(name: &str, text: &str) -> Option<Compiled> {
    let compiled = compiler()?.compile(&Source::new(name, text), Target::Sm90a);
    Some(compiled.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn machine_code_comes_with_its_log_and_facts() {
    let Some(kernel) = compile("fine", FINE) else {
        return;
    };
    assert!(kernel.cubin().starts_with(b"\x7fELF"));
    assert!(
        kernel.log.contains("Used"),
        "the log is kept: {}",
        kernel.log
    );
    let [facts] = &kernel.facts[..] else {
        panic!("{:?}", kernel.facts)
    };
    assert_eq!(facts.name, "fine");
    assert_eq!(
        (facts.frame, facts.threads, facts.cluster),
        (0, Some(384), Some([2, 1, 1]))
    );
    assert!((1..=168).contains(&facts.registers), "{facts:?}");
    assert!((1024..=2048).contains(&facts.shared), "{facts:?}");
    assert_eq!((facts.parameters, facts.parameter_count), (20, 3));
    let Some(sass) = sass(kernel.cubin()) else {
        return;
    };
    assert_eq!(sass_checks::findings(&kernel, Some(&sass)), [] as [&str; 0]);
    assert!(sass.count("EXIT") > 0 && sass.count("STS") > 0);
}

#[test]
fn every_sass_check_fires() {
    for (name, text, wanted) in [
        (
            "spills",
            SPILLS,
            ["spill stores", "a frame of", "LDL", "STL"].as_slice(),
        ),
        ("loops", LOOPS, &["BRA.U.ANY"]),
        ("serial", SERIAL, &["the compiler warns of slow code"]),
    ] {
        let Some(kernel) = compile(name, text) else {
            return;
        };
        let Some(sass) = sass(kernel.cubin()) else {
            return;
        };
        let found = sass_checks::findings(&kernel, Some(&sass)).join("\n");
        for wanted in wanted {
            assert!(
                found.contains(wanted),
                "{name}: no {wanted} in\n{found}\n{}",
                kernel.log
            );
        }
    }
}

/// The same instructions, though labels are numbers.
#[test]
fn several_kernels_are_disassembled_at_once() {
    let kernels = [("loops", LOOPS), ("spills", SPILLS), ("fine", FINE)];
    let mut compiled = Vec::new();
    for (name, text) in kernels {
        let Some(kernel) = compile(name, text) else {
            return;
        };
        compiled.push(kernel);
    }
    let cubins: Vec<&[u8]> = compiled.iter().map(Compiled::cubin).collect();
    let Some(together) = sass_of_all(&cubins) else {
        return;
    };
    fn names(sass: &Sass) -> Vec<&str> {
        sass.instructions
            .iter()
            .map(|one| Sass::name(one))
            .collect()
    }
    for (cubin, found) in cubins.iter().zip(&together) {
        let Some(alone) = sass(cubin) else { return };
        assert!(alone.instructions.len() > 10);
        assert_eq!(names(&alone), names(found));
    }
    let found = Sass::of_all(&[cubins[0], b"no cubin"]).expect_err("refused");
    assert!(found.to_string().contains("cannot be read"), "{found}");
    assert_eq!(Sass::of_all(&[]).expect("nothing to do"), []);
}

/// It stands before every captured launch.
#[test]
fn the_kernel_that_compares_launches_compiles_without_spills() {
    let Some(compiler) = compiler() else { return };
    let compiled = counterflow_runtime::launch::compile_agree(&compiler).expect("it compiles");
    let facts = &compiled.facts[0];
    assert_eq!((&*facts.name, facts.parameter_count), ("agree", 6));
    assert!(facts.registers <= 40, "{facts:?}");
    assert_eq!(sass_checks::in_log(&compiled.log), Vec::<String>::new());
}

#[test]
fn the_same_text_gives_the_same_bytes_on_any_thread() {
    let Some(compiler) = compiler() else { return };
    let sources = [(Source::new("fine", FINE), Target::Sm90a); 4];
    let all: Vec<_> = compiler
        .compile_all(&sources)
        .into_iter()
        .map(|one| one.expect("compiles").cubin().to_vec())
        .collect();
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|cubin| *cubin == all[0]));
}

#[test]
fn the_cache_answers_and_survives_damage() {
    let Some(compiler) = compiler() else { return };
    let dir = folder("cache");
    let compiler = compiler.with_cache(Cache::at(&dir));
    let source = Source::new("fine", FINE);
    let compile = || compiler.compile(&source, Target::Sm90a).expect("compiles");
    let first = compile();
    assert_eq!(first.cached, Cached::Stored);
    let again = compile();
    assert_eq!(
        (&again.cached, again.cubin(), &again.log),
        (&Cached::Hit, first.cubin(), &first.log)
    );
    for entry in std::fs::read_dir(&dir).expect("there") {
        std::fs::write(entry.expect("readable").path(), "damaged").expect("written");
    }
    let again = compile();
    assert_eq!(
        (&again.cached, again.cubin()),
        (&Cached::Stored, first.cubin())
    );
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn an_error_names_the_schedules_line_and_shows_the_generated_ones() {
    let Some(compiler) = compiler() else { return };
    let text = "extern \"C\" __global__ void k(int* y) {\n#line 17 \"src/mine.rs\"\n    y[0] = undefined_thing;\n}\n";
    let error = compiler
        .compile(&Source::new("k", text), Target::Sm90a)
        .expect_err("refused");
    let Error::Compile(refused) = &error else {
        panic!("{error}")
    };
    let excerpt = &refused.excerpts[0];
    assert_eq!(
        (excerpt.file.as_str(), excerpt.line, excerpt.at),
        ("src/mine.rs", 17, Some(2))
    );
    assert!(
        error
            .to_string()
            .contains(">    2 |     y[0] = undefined_thing;"),
        "{error}"
    );
}

#[test]
fn probes_of_memory_and_links_compile_and_spill_nothing() {
    let Some(compiler) = compiler() else { return };
    let compiled = counterflow_runtime::probes::compile(&compiler);
    let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
    let facts = compiled.facts.iter();
    let mut kernels: Vec<_> = facts
        .map(|facts| (&facts.name[..], facts.frame, facts.parameter_count))
        .collect();
    kernels.sort_unstable();
    let wanted = [
        ("probe_move", 0, 5),
        ("probe_read", 0, 6),
        ("probe_signal", 0, 6),
        ("probe_whole_sm", 0, 0),
    ];
    assert_eq!(kernels, wanted);
}

/// Ranks are threads that build the same ops at the same time.
#[test]
fn threads_that_want_the_same_kernel_compile_it_once() {
    let Some(compiler) = compiler() else {
        return;
    };
    let dir = folder("once");
    let compiler = compiler.with_cache(Cache::at(&dir));
    let source = Source::new("fine", FINE);
    let threads = 4;
    let ready = std::sync::Barrier::new(threads);
    let found: Vec<Cached> = std::thread::scope(|scope| {
        let compile = || {
            ready.wait();
            let compiled = compiler.compile(&source, Target::Sm90a);
            compiled.expect("compiles").cached
        };
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(compile)).collect();
        all.into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    });
    let stored = found.iter().filter(|cached| **cached == Cached::Stored);
    assert_eq!(stored.count(), 1, "{found:?}");
    let hits = found.iter().filter(|cached| **cached == Cached::Hit);
    assert_eq!(hits.count(), threads - 1, "{found:?}");
    let _ = std::fs::remove_dir_all(dir);
}

/// Every exchange of low latency keeps its pieces in registers.
#[test]
fn exchanges_of_low_latency_compile_without_spills() {
    let Some(compiler) = common::caching_compiler() else {
        return;
    };
    for world in 1..=8 {
        for collective in [
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllReduce,
            Collective::TwoShotAllReduce,
        ] {
            for dtype in [Dtype::Bf16, Dtype::F16] {
                let told = format!("{collective} of {} in a world of {world}", dtype.name());
                let made = compile_exchange(&compiler, collective, world, dtype);
                let made = made.unwrap_or_else(|error| panic!("{told}: {error}"));
                let [kernel] = &made.facts[..] else {
                    panic!("{told}: {} kernels", made.facts.len());
                };
                println!("{told}: {} registers", kernel.registers);
                assert_eq!(kernel.frame, 0, "{told}: {}", made.log);
                assert!(
                    kernel.registers * 256 <= 1 << 16,
                    "{told} does not fit on an SM"
                );
            }
        }
    }
}
