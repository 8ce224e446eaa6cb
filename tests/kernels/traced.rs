//! Traced kernels: the same text with probes in it, which compiles for Hopper. Other kernels have no word of them.

use crate::sass::{checked, nvidia};
use crate::wide::sampled;
use counterflow::codegen::cuda::{self, SiteKind, Traced};
use counterflow::{Dtype, Program, Scales, Variant, launch, schedules};

/// One of each kind that a role's text may be: plain, ping-pong, split K, FP8, moved by CTAs, pulled, summed, in a ring.
fn kinds() -> Vec<(Program, Variant)> {
    let wide = Variant::new(4).set("tiles", (128, 256));
    let small = Variant::new(4).set("tiles", (128, 128));
    let fp8 = |scales| {
        let wide = wide.clone().dtype(Dtype::E4M3);
        wide.output(Dtype::Bf16).scales(scales)
    };
    vec![
        (schedules::gemm(), wide.clone()),
        (schedules::gemm(), small.clone().set("gemm.ping_pong", 1)),
        (schedules::gemm(), small.set("gemm.split", 2)),
        (schedules::gemm(), fp8(Scales::PerTensor)),
        (schedules::gemm(), fp8(Scales::Blocks1d2d)),
        (schedules::ag_gemm(), wide.clone()),
        (schedules::ag_gemm(), fp8(Scales::PerRow)),
        (schedules::ag_gemm_pull(), wide.clone()),
        (schedules::gemm_rs(), wide.clone()),
        (schedules::gemm_ar(), wide.clone()),
        (schedules::rs_ring(), wide.clone()),
        (schedules::fsdp_gemm(), wide),
    ]
}

/// A traced text without its probes.
fn bare(text: &str) -> String {
    let mut out = String::new();
    let mut within = false;
    for line in text.lines() {
        let code = line.trim_start();
        let probe = ["LaneTrace ", "lane_trace.", "if (unsignalled) lane_trace."];
        if within || probe.iter().any(|start| code.starts_with(start)) {
            within = !code.ends_with(';');
        } else if code != format!("#include \"{}\"", cuda::TRACE_PRELUDE) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[test]
fn a_traced_text_is_the_plain_one_with_probes() {
    for (program, variant) in kinds() {
        let pipeline = checked(&program, &variant);
        let plain = cuda::emit(&pipeline);
        let Traced { source, sites } = cuda::emit_traced(&pipeline);
        let what = format!("{} {variant}", program.name);
        assert!(!plain.text.to_lowercase().contains("trace"), "{what}");
        let names: Vec<&str> = cuda::headers(&plain)
            .iter()
            .map(|(name, _)| *name)
            .collect();
        assert!(!names.contains(&cuda::TRACE_PRELUDE), "{what}");
        assert_eq!(bare(&source.text), plain.text, "{what}");
        assert_ne!(source.text, plain.text, "{what}");
        assert_eq!(source.params, plain.params, "{what}");
        // Every role begins and ends, every tile is multiplied, every wait is met.
        let count =
            |wanted: fn(SiteKind) -> bool| sites.iter().filter(|site| wanted(site.kind)).count();
        let roles = source.roles.len();
        assert_eq!(count(|kind| kind == SiteKind::Start), roles, "{what}");
        assert_eq!(count(|kind| kind == SiteKind::End), roles, "{what}");
        let waits = count(|kind| kind == SiteKind::Waits);
        let met = count(|kind| matches!(kind, SiteKind::Met | SiteKind::MetEarlier));
        assert_eq!(waits, met, "{what}");
        let waited = sites.iter().filter(|site| site.kind == SiteKind::Waits);
        for site in waited {
            assert!(
                site.counter.is_some() && !site.statement.is_empty(),
                "{what}: {site:?}"
            );
        }
        let multiplied = count(|kind| kind == SiteKind::Multiplied);
        let tiles = sites
            .iter()
            .filter(|site| site.role == "multiply" && matches!(site.kind, SiteKind::Tile { .. }));
        assert_eq!(multiplied, tiles.count(), "{what}");
        assert!(
            count(|kind| kind == SiteKind::Stored || kind == SiteKind::Sent) > 0,
            "{what}"
        );
        // Those of the launch's last CTA come after all roles have ended.
        let roles = plain.text.split("// Every CTA is done").next();
        let signals = roles.map_or(0, |roles| roles.matches("counter_add(").count());
        assert_eq!(count(|kind| kind == SiteKind::Signals), signals, "{what}");
        println!("{what}: {} probes", sites.len());
    }
}

#[test]
fn traced_kernels_compile() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    for (program, variant) in sampled(kinds(), 3) {
        let pipeline = checked(&program, &variant);
        let [plain, traced] =
            [cuda::emit(&pipeline), cuda::emit_traced(&pipeline).source].map(|source| {
                let compiled = launch::compile(&compiler, &source);
                compiled.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name))
            });
        let [plain, traced] = [&plain, &traced].map(|compiled| &compiled.facts[0]);
        println!(
            "{} {variant}: {} registers, traced {}; {} bytes of frame, traced {}",
            program.name, plain.registers, traced.registers, plain.frame, traced.frame
        );
        assert_eq!(
            plain.frame, 0,
            "{} {variant}: a plain kernel spills",
            program.name
        );
        assert!(
            traced.registers <= 168,
            "{} {variant}: no room for its registers",
            program.name
        );
    }
}
