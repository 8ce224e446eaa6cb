//! SASS checks: what compiled kernels must not contain. Each finds a mistake that still gives the right result, but
//! slowly or only by luck.

use super::sass::Sass;
use super::{Compiled, Facts};

/// Instructions between two multiplies that still belong to one stage.
const NEAR: usize = 12;

/// Defects of a compiled kernel; empty if there is none. Without the instructions, it still checks the log and the
/// cubin's facts.
///
/// ```
/// use counterflow::jit::{Compiled, sass::Sass, sass_checks};
///
/// fn check(kernel: &Compiled) -> Result<(), counterflow::Error> {
///     let sass = Sass::of(kernel.cubin())?;
///     sass_checks::findings(kernel, Some(&sass)).iter().for_each(|found| eprintln!("{found}"));
///     Ok(())
/// }
/// ```
pub fn findings(compiled: &Compiled, sass: Option<&Sass>) -> Vec<String> {
    let mut found = in_log(&compiled.log);
    found.extend(compiled.facts.iter().filter_map(in_facts));
    found.extend(sass.into_iter().flat_map(in_sass));
    found
}

/// Warnings of slow code (a serialised wgmma, an ignored setmaxnreg), and spills.
///
/// ```
/// use counterflow::jit::sass_checks::in_log;
///
/// let log = "ptxas info: 0 bytes stack frame, 96 bytes spill stores, 96 bytes spill loads";
/// assert_eq!(in_log(log), ["96 bytes spill stores", "96 bytes spill loads"]);
/// ```
pub fn in_log(log: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in log.lines() {
        let slow = line.contains("Potential Performance Loss") || line.contains("C75");
        if slow {
            found.push(format!("the compiler warns of slow code: {}", line.trim()));
        }
        for what in [
            "bytes stack frame",
            "bytes spill stores",
            "bytes spill loads",
        ] {
            let amount = number_before(line, what).unwrap_or(0);
            if amount > 0 {
                found.push(format!("{amount} {what}"));
            }
        }
    }
    found
}

/// Instructions whose number differs from what the tile and the statements need:
/// [`counterflow_emitter::expected`].
///
/// ```
/// use counterflow::jit::{sass::Sass, sass_checks::in_counts};
///
/// let sass = Sass::parse("/*0000*/ HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8] ;");
/// assert_eq!(in_counts(&sass, &[("HGMMA", 4)]), ["1 HGMMA, but the variant has 4"]);
/// ```
pub fn in_counts(sass: &Sass, wanted: &[(&'static str, u32)]) -> Vec<String> {
    let counts = wanted.iter().map(|(name, wanted)| {
        let count = sass.count(name);
        (count != *wanted as usize).then(|| format!("{count} {name}, but the variant has {wanted}"))
    });
    counts.flatten().collect()
}

fn number_before(line: &str, what: &str) -> Option<u64> {
    line[..line.find(what)?]
        .split_whitespace()
        .next_back()?
        .parse()
        .ok()
}

fn in_facts(facts: &Facts) -> Option<String> {
    (facts.frame > 0).then(|| format!("{}: a frame of {} bytes", facts.name, facts.frame))
}

/// Local memory, loads that take memory for constant, loops that elect a lane at every TMA instruction, and uniform
/// registers refilled between the multiplies of one stage.
///
/// ```
/// use counterflow::jit::{sass::Sass, sass_checks::in_sass};
///
/// let sass = Sass::parse("/*0000*/ LDL R4, [R1] ;");
/// assert_eq!(in_sass(&sass), ["1 LDL: loads from local memory"]);
/// ```
pub fn in_sass(sass: &Sass) -> Vec<String> {
    let mut found = Vec::new();
    for (name, why) in [
        ("LDL", "loads from local memory"),
        ("STL", "stores to local memory"),
        (
            "BRA.U.ANY",
            "loops over lanes around a TMA instruction: branch on a uniform warp index and elect_one()",
        ),
    ] {
        let count = sass.count(name);
        if count > 0 {
            found.push(format!("{count} {name}: {why}"));
        }
    }
    let names = sass.instructions.iter().map(|one| Sass::name(one));
    let constant = names.filter(|name| name.starts_with("LDG") && name.contains(".CONSTANT"));
    let constant = constant.count();
    if constant > 0 {
        found.push(format!(
            "{constant} LDG.CONSTANT: the launch before may still write what a kernel that starts early loads"
        ));
    }
    let is = |index: &usize, name: &str| Sass::name(&sass.instructions[*index]).starts_with(name);
    let multiplies: Vec<usize> = (0..sass.instructions.len())
        .filter(|index| is(index, "HGMMA") || is(index, "QGMMA"))
        .collect();
    let refills: usize = multiplies
        .windows(2)
        .filter(|pair| pair[1] - pair[0] < NEAR)
        .map(|pair| (pair[0]..pair[1]).filter(|index| is(index, "R2UR")).count())
        .sum();
    if refills > 0 {
        found.push(format!(
            "{refills} R2UR between multiplies: descriptors are not uniform"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_log_is_clean() {
        let log = "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for gemm\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 168 registers, used 1 barriers\n";
        assert_eq!(in_log(log), [] as [&str; 0]);
    }

    #[test]
    fn slow_code_and_spills_are_found() {
        let log = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n    288 bytes stack frame, 560 bytes spill stores, 584 bytes spill loads\n";
        let found = in_log(log);
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[2], "560 bytes spill stores");
    }

    #[test]
    fn slow_instructions_are_found() {
        let text = |names: &[&str]| Sass {
            instructions: names.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(
            in_sass(&text(&[
                "HGMMA.64x256x16.F32.BF16 R24",
                "UIADD3 UR4",
                "HGMMA.64x256x16.F32.BF16 R24",
                "R2UR UR4, R2"
            ])),
            [] as [&str; 0]
        );
        let slow = text(&[
            "LDL R1",
            "LDG.E.64.CONSTANT R2",
            "LDG.E.64 R2",
            "@P1 STL.64 [R1]",
            "@P0 BRA.U.ANY `(x)",
            "HGMMA.64x8x16 R1",
            "R2UR UR4, R2",
            "HGMMA.64x8x16 R1",
        ]);
        assert_eq!(in_sass(&slow).len(), 5);
    }
}
