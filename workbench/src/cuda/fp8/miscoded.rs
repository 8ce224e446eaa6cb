//! Tests of the comparison of codes with scales of their own, before it is used: of a result, and of products before they are added.

use super::{Bounds, Exactly, Fp8, Got, Narrowed, Scale, Term, Terms};
use counterflow_codegen::bounds::{Made, Magnitude, of_codes};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::rule::{self, Rule};
use counterflow_codegen::shape::Extent;
use counterflow_runtime::Error;
use counterflow_runtime::driver::{Address, Local};

const ROWS: usize = 6;
/// The last block is half of one.
const COLUMNS: usize = 320;
const LINES: usize = COLUMNS.div_ceil(128);
const PARTS: usize = 3;
const COUNT: usize = ROWS * COLUMNS;
const RULE: Rule = Rule::transformer_engine(rule::Fp8::E4M3).powers_of_two();

/// What is wrong with codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    Nothing,
    /// Each is three steps from the right one.
    Code,
    /// Scales are those of the next row.
    Scale,
    /// Each is a NaN.
    Nan,
}

impl Mistake {
    const ALL: [Mistake; 4] = [
        Mistake::Nothing,
        Mistake::Code,
        Mistake::Scale,
        Mistake::Nan,
    ];
}

/// Numbers of which rows next to each other have other sizes.
fn numbers(part: usize) -> Vec<f32> {
    let number = |at: usize| {
        let (row, mixed) = (at / COLUMNS, (at * 7919 + part * 104_729) % 1000);
        let size = (1.0 + mixed as f32 / 1000.0) * 16f32.powi((row + part) as i32 % 3);
        if mixed % 2 == 0 { size } else { -size }
    };
    (0..COUNT).map(number).collect()
}

/// Their codes, and a plane with a line for each 128 columns.
fn coded(numbers: &[f32], mistake: Mistake) -> (Vec<u8>, Vec<f32>) {
    let mut values = numbers.to_vec();
    let plane = RULE.scale_lines(&mut values, COLUMNS);
    let code = |value: &f32| {
        let code = RULE.to.code(*value);
        match mistake {
            Mistake::Nothing | Mistake::Scale => code,
            Mistake::Code if code & 0x7f < 0x70 => code + 3,
            Mistake::Code => code - 3,
            Mistake::Nan => 0x7f,
        }
    };
    let by = usize::from(mistake == Mistake::Scale);
    let of = |at: usize| plane[at / ROWS * ROWS + (at + by) % ROWS];
    (
        values.iter().map(code).collect(),
        (0..plane.len()).map(of).collect(),
    )
}

/// What codes and scales stand for.
fn decoded((codes, plane): &(Vec<u8>, Vec<f32>)) -> Vec<f64> {
    let each = codes.iter().enumerate().map(|(at, code)| {
        let scale = plane[at % COLUMNS / 128 * ROWS + at / COLUMNS];
        f64::from(RULE.to.value(*code)) * f64::from(scale)
    });
    each.collect()
}

/// The amax of each block, row by row.
fn amaxes(numbers: &[f32]) -> Vec<Magnitude> {
    let blocks = numbers.chunks(COLUMNS).flat_map(|row| row.chunks(128));
    let exact = |value: &f32| (f64::from(*value), 0.0);
    let of = |block: &[f32]| Magnitude::of(block.iter().map(exact), RULE.keeps_nan());
    blocks.map(of).collect()
}

fn least(amaxes: &[Magnitude]) -> Vec<f32> {
    let each = amaxes.iter();
    let each = each.map(|amax| Made::of(&RULE, amax).least_code(&RULE) as f32);
    each.collect()
}

/// How many of some sums are wrong.
fn wrong(got: &[f64], bounds: &Bounds, parts: &[Vec<f32>]) -> u32 {
    let least: Vec<_> = parts.iter().map(|part| least(&amaxes(part))).collect();
    let is_wrong = |at: &usize| {
        let block = at / COLUMNS * LINES + at % COLUMNS / 128;
        let term = |part: usize| Term {
            value: f64::from(parts[part][*at]),
            off: 0.0,
            least: Some(least[part][block]),
        };
        let terms: Vec<Term> = (0..parts.len()).map(term).collect();
        !bounds.allow(got[*at], &terms)
    };
    (0..COUNT).filter(is_wrong).count() as u32
}

/// Results and terms as codes that have that mistake: the last term alone, where there are several.
fn mistaken(mistake: Mistake) -> ((Vec<u8>, Vec<f32>), Vec<f32>) {
    let alone = coded(&numbers(0), mistake);
    let part = |part: usize| {
        let last = part + 1 == PARTS;
        let mistake = if last { mistake } else { Mistake::Nothing };
        decoded(&coded(&numbers(part), mistake))
    };
    let parts: Vec<_> = (0..PARTS).map(part).collect();
    let sum = |at: usize| parts.iter().map(|part| part[at]).sum::<f64>() as f32;
    (alone, (0..COUNT).map(sum).collect())
}

fn terms(at: [Address; 3], parts: usize) -> Terms {
    let [value, allowed, least] = at;
    Terms {
        exact: Exactly { value, allowed },
        stride: 8 * COUNT as u64,
        parts: parts as u32,
        rounded: 0,
        narrowed: Some(Narrowed {
            least,
            loses: of_codes(&RULE),
            chunk: None,
        }),
    }
}

impl Fp8 {
    /// Tests the comparison of codes with scales of their own, and of sums of such: it finds as many wrong as the host does.
    pub(super) fn see_wrong_codes(&self) -> Result<(), Error> {
        let parts: Vec<Vec<f32>> = (0..PARTS).map(numbers).collect();
        // All have the same stride, so some of each matrix is not read.
        let (mut value, mut floors) = (Vec::new(), vec![0f32; 2 * PARTS * COUNT]);
        for (part, numbers) in parts.iter().enumerate() {
            value.extend(numbers.iter().map(|number| f64::from(*number).to_bits()));
            let least = least(&amaxes(numbers));
            floors[2 * part * COUNT..][..least.len()].copy_from_slice(&least);
        }
        let value = Local::of(&self.stream, &value)?;
        let allowed: Local<f32> = Local::zeros(&self.stream, 2 * PARTS * COUNT)?;
        let floors = Local::of(&self.stream, &floors)?;
        let at = [value.address(), allowed.address(), floors.address()];
        let [rows, columns] = [ROWS, COLUMNS].map(|size| size as u32);
        let mut told = Vec::new();
        if self.magnitudes(terms(at, 1).exact, [rows, columns])? != amaxes(&parts[0]) {
            told.push("amaxes of blocks are wrong".into());
        }
        for mistake in Mistake::ALL {
            let (alone, sum) = mistaken(mistake);
            let codes = Local::of(&self.stream, &alone.0)?;
            let plane = Local::of(&self.stream, &alone.1)?;
            let scale = Scale::Plane {
                at: plane.address(),
                pitch: rows,
            };
            let of_codes = Got {
                at: codes.address(),
                dtype: RULE.to.dtype(),
                rows: Extent {
                    start: 0,
                    end: rows,
                },
                columns,
                scale,
            };
            let sums = Local::of(&self.stream, &sum)?;
            let of_sums = Got::plain((sums.address(), Dtype::F32), rows, columns);
            let sum = sum.iter().map(|sum| f64::from(*sum)).collect();
            let cases = [(of_codes, 1, decoded(&alone)), (of_sums, PARTS, sum)];
            for (got, count, numbers) in cases {
                let terms = terms(at, count);
                let host = wrong(
                    &numbers,
                    &terms.bounds(got.dtype, got.scale),
                    &parts[..count],
                );
                let found = self.differ_exactly(got, terms, None)?.wrong;
                if found != host {
                    told.push(format!(
                        "{mistake:?} in sums of {count}: {found} of {COUNT} are wrong, and {host} on the host"
                    ));
                }
            }
        }
        if told.is_empty() {
            return Ok(());
        }
        Err(Error::Wrong {
            what: told.join("; "),
            help: "report it with the GPU and the driver: no result can be trusted here".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The GPU is held to these counts, so they must tell right from wrong.
    #[test]
    fn codes_and_scales_that_are_wrong_are_seen() {
        let parts: Vec<Vec<f32>> = (0..PARTS).map(numbers).collect();
        let none = [Address::default(); 3];
        let plane = Scale::Plane {
            at: Address::default(),
            pitch: 0,
        };
        for mistake in Mistake::ALL {
            let (alone, sum) = mistaken(mistake);
            let of_codes = terms(none, 1).bounds(RULE.to.dtype(), plane);
            let found = wrong(&decoded(&alone), &of_codes, &parts[..1]);
            let all = if mistake == Mistake::Nothing {
                0
            } else {
                COUNT as u32
            };
            assert_eq!(found, all, "{mistake:?}");
            let sum: Vec<f64> = sum.iter().map(|sum| f64::from(*sum)).collect();
            let of_sums = terms(none, PARTS).bounds(Dtype::F32, Scale::Given(1.0));
            let found = wrong(&sum, &of_sums, &parts);
            match mistake {
                Mistake::Nothing => assert_eq!(found, 0),
                Mistake::Nan => assert_eq!(found, COUNT as u32),
                // Next to larger terms a small one's mistake is lost.
                Mistake::Code | Mistake::Scale => {
                    assert!(found > COUNT as u32 / 10, "{mistake:?}: {found}");
                }
            }
        }
    }
}
