//! Random schedules down to machine code: the first that the tile level accepts, but for the few that have no pipeline.
//! `RANDOM_CASES` says how many, 3 by default and 100 in `.ci/run`. How far 1,000 get is a test of its own.

use crate::generator::warps::{Accepted, Warps, accepted, accepted_of_several, rule, warps};
use crate::parallel::in_parallel;
use crate::sass::{each, nvidia};
use crate::wide::wide;
use counterflow::codegen::cuda;
use counterflow::jit::{Compiler, sass_checks};
use counterflow::{Variant, launch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::sync::Mutex;
use std::thread::available_parallelism;

const SEED: u64 = 18;

/// Whether it is compiled. Warps that are built are right, or the schedule has no small case in which all of them run.
fn has_kernel(found: &Accepted) -> bool {
    match warps(&found.kernel) {
        Warps::Right(_) => true,
        Warps::Refused(_) => false,
        Warps::Wrong(found) => panic!("{found}"),
    }
}

/// As many instructions of each sort as their statements ask for. The largest tiles leave few registers for branches and
/// several loops, so one in twenty may spill: each is printed. A sample of fewer says nothing of that.
#[test]
fn random_schedules_pass_the_sass_checks() {
    let count = number("RANDOM_CASES", if wide() { 100 } else { 3 });
    let cases = accepted(SEED, |_, _| {}).take(count);
    let cases: Vec<_> = cases
        .filter(has_kernel)
        .map(|found| (found.case.program, Variant::new(found.case.world)))
        .collect();
    let have = cases.len();
    println!("{have} of {count} accepted schedules have a kernel");
    assert!(have * 100 >= count * 95, "{have} of {count} have a kernel");
    let Some(found) = each(&cases) else { return };
    let slow: Vec<_> = found
        .iter()
        .filter(|found| !found.slow.is_empty())
        .collect();
    slow.iter()
        .for_each(|found| println!("{}", found.slow.join("\n")));
    let wrong: Vec<String> = found.iter().flat_map(|found| found.wrong.clone()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let slow = slow.len();
    assert!(have < 20 || slow * 20 <= have, "{slow} of {have} are slow");
}

/// Adds to a report what becomes of the accepted schedules from number `RANDOM_FROM` to before `RANDOM_TO`, but for those that
/// are in it, and prints what all of it says. So a long count may be made in parts. With `RANDOM_SEVERAL` they are kernels of
/// several gathers, products and sums. With `RANDOM_COMPILED=n` one in `n`, chosen by a hash of its number, is compiled to machine
/// code, and of the others it says `emitted`. The report is `random_schedules.tsv`, or `several.tsv`, in the tests' folder for
/// files; remove it when the compiler or the generator changed. With `RANDOM_QUICK`
/// NVRTC optimises little, in half the time: the front end and the assembler read the same text, and what it says of slow code is of
/// no kernel that users have. It is an option of the process: no other test of machine code may run in it.
#[test]
#[ignore = "a second of compiling for each schedule"]
fn how_far_random_schedules_get() {
    let Some(compiler) = nvidia::caching_compiler() else {
        return;
    };
    let compiler = match std::env::var_os("RANDOM_QUICK") {
        Some(_) => launch::unoptimised(compiler),
        None => compiler,
    };
    let several = std::env::var("RANDOM_SEVERAL").is_ok();
    let report = match several {
        true => concat!(env!("CARGO_TARGET_TMPDIR"), "/several.tsv"),
        false => concat!(env!("CARGO_TARGET_TMPDIR"), "/random_schedules.tsv"),
    };
    let known = fs::read_to_string(report).unwrap_or_default();
    let known: BTreeSet<usize> = known
        .lines()
        .filter_map(|line| line.split('\t').next()?.parse().ok())
        .collect();
    let (from, to) = (number("RANDOM_FROM", 0), number("RANDOM_TO", 1000));
    let one_in = number("RANDOM_COMPILED", 1).max(1) as u64;
    let options = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(report);
    let out = options.unwrap_or_else(|error| panic!("{report}: {error}"));
    let cases: Box<dyn Iterator<Item = Accepted> + Send> = match several {
        true => Box::new(accepted_of_several(SEED, |_, _| {})),
        false => Box::new(accepted(SEED, |_, _| {})),
    };
    let cases = cases.enumerate().take(to).skip(from);
    let cases = cases.filter(|(nth, _)| !known.contains(nth));
    // One core draws the next schedule while others compile. The report has what was said so far, should this end early.
    let (cases, out) = (Mutex::new(cases), Mutex::new(out));
    let next = || cases.lock().expect("no panic beside").next();
    in_parallel(available_parallelism().map_or(1, usize::from), |_| {
        while let Some((nth, found)) = next() {
            let chosen = (nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let compiler = Some(&compiler).filter(|_| chosen.is_multiple_of(one_in));
            let line = format!("{nth}\t{}\t{}\n", found.number, became(compiler, &found));
            let mut out = out.lock().expect("no panic beside");
            out.write_all(line.as_bytes())
                .unwrap_or_else(|error| panic!("{report}: {error}"));
        }
    });
    let all = fs::read_to_string(report).unwrap_or_default();
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for became in all.lines().filter_map(|line| line.split('\t').nth(2)) {
        *outcomes.entry(became).or_default() += 1;
    }
    println!("{report}:");
    for (became, count) in &outcomes {
        println!("{count:6}  {became}");
    }
    let of = |word: &str| {
        let such = outcomes
            .iter()
            .filter(|(became, _)| became.starts_with(word));
        such.map(|(_, count)| count).sum::<usize>()
    };
    let (compiled, emitted, all) = (of("compiled"), of("emitted"), all.lines().count());
    println!(
        "{} of {all} pass the warp verifier and have a text; {compiled} of these were compiled, and have machine code",
        compiled + emitted
    );
    let wrong = outcomes.keys().find(|became| became.starts_with("wrong"));
    assert_eq!(wrong, None);
}

/// What becomes of an accepted schedule, without the names and numbers of its own. Without a compiler its text is all.
fn became(compiler: Option<&Compiler>, found: &Accepted) -> String {
    let pipeline = match warps(&found.kernel) {
        Warps::Right(pipeline) => pipeline,
        Warps::Refused(found) => return format!("refused: {}", rule(&found.first().message)),
        Warps::Wrong(found) => return format!("wrong warps: {}", rule(&found.first().message)),
    };
    let text = cuda::emit(&pipeline);
    let Some(compiler) = compiler else {
        return "emitted".into();
    };
    match launch::compile(compiler, &text) {
        Err(error) => format!("wrong text: {}", rule(&error.to_string())),
        Ok(compiled) => match sass_checks::findings(&compiled, None).first() {
            None => "compiled".into(),
            Some(slow) => format!("compiled, slow: {}", rule(slow)),
        },
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}
