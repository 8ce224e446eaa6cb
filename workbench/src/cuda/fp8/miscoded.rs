//! Tests of the comparison of codes, before it is used: of a result, and of products before they are added.

use super::{Exactly, Fp8, Got, Narrowed, Scale, Term, Terms};
use counterflow_codegen::bounds::{Made, Magnitude, of_codes};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::rule::{self, Rule};
use counterflow_codegen::shape::Extent;
use counterflow_runtime::Error;
use counterflow_runtime::driver::{Address, Local};

const ROWS: usize = 6;
/// The first of them in the whole result.
const FIRST: usize = 2;
/// Rows of a chunk: the last one is that of a rank without a product here.
const CHUNK: usize = 2;
/// Scales in a line of a plane.
const PITCH: usize = 8;
/// The last block is half of one.
const COLUMNS: usize = 320;
const LINES: usize = COLUMNS.div_ceil(128);
const PARTS: usize = 3;
const COUNT: usize = ROWS * COLUMNS;
const RULE: Rule = Rule::transformer_engine(rule::Fp8::E4M3).powers_of_two();
/// Numbers of the largest size are beyond what codes by it stand for.
const GIVEN: f32 = 2.0;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// Codes with scales of their own.
    Codes,
    /// Codes by a given scale.
    Given,
    /// The same, as results of products that are NaN.
    OfNan,
    /// Sums of codes.
    Sums,
    /// Sums of codes and of what ranks add to them as it is: their own products of their own rows.
    SumsAndOwn,
}

impl Case {
    const ALL: [Case; 5] = [
        Case::Codes,
        Case::Given,
        Case::OfNan,
        Case::Sums,
        Case::SumsAndOwn,
    ];

    fn dtype(self) -> Dtype {
        match self {
            Case::Codes | Case::Given | Case::OfNan => RULE.to.dtype(),
            Case::Sums | Case::SumsAndOwn => Dtype::F32,
        }
    }

    fn scale(self, plane: Address) -> Scale {
        match self {
            Case::Codes => Scale::Plane {
                at: plane,
                pitch: PITCH as u32,
            },
            Case::Given | Case::OfNan => Scale::Given(GIVEN),
            Case::Sums | Case::SumsAndOwn => Scale::NONE,
        }
    }

    /// The products that it is of.
    fn products(self) -> Vec<Vec<f32>> {
        match self {
            Case::Codes | Case::Given => vec![numbers(0)],
            Case::OfNan => vec![vec![f32::NAN; COUNT]],
            Case::Sums | Case::SumsAndOwn => (0..PARTS).map(numbers).collect(),
        }
    }

    /// Whether that product was a code before it was compared or added.
    fn is_code(self, part: usize, at: usize) -> bool {
        match self {
            Case::Codes | Case::Sums => true,
            Case::Given | Case::OfNan => false,
            Case::SumsAndOwn => (FIRST + at / COLUMNS) / CHUNK != part,
        }
    }

    /// With products, what sums of them are allowed, and what codes of them lose at least.
    fn terms(self, [value, allowed, least]: [Address; 3]) -> Terms {
        let narrowed = Narrowed {
            least,
            loses: of_codes(&RULE),
            chunk: (self == Case::SumsAndOwn).then_some(CHUNK as u32),
        };
        Terms {
            exact: Exactly { value, allowed },
            stride: 8 * COUNT as u64,
            parts: self.products().len() as u32,
            rounded: 0,
            narrowed: (!matches!(self, Case::Given | Case::OfNan)).then_some(narrowed),
        }
    }
}

/// What is wrong with codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    Nothing,
    /// Each is three steps from the right one.
    Code,
    /// Scales are those of the next row, or twice the one that is given.
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

/// A code that has that mistake.
fn code(value: f32, mistake: Mistake) -> u8 {
    let code = RULE.to.code(value);
    match mistake {
        Mistake::Nothing | Mistake::Scale => code,
        Mistake::Code if code & 0x7f < 0x70 => code + 3,
        Mistake::Code => code - 3,
        Mistake::Nan => 0x7f,
    }
}

/// Codes of numbers, and a plane with a line for each 128 columns.
fn coded(numbers: &[f32], mistake: Mistake) -> (Vec<u8>, Vec<f32>) {
    let mut values = numbers.to_vec();
    let scales = RULE.scale_lines(&mut values, COLUMNS);
    let mut plane = vec![f32::NAN; LINES * PITCH];
    let by = usize::from(mistake == Mistake::Scale);
    for (line, scales) in plane.chunks_mut(PITCH).zip(scales.chunks(ROWS)) {
        for row in 0..ROWS {
            line[row] = scales[(row + by) % ROWS];
        }
    }
    let codes = values.into_iter().map(|value| code(value, mistake));
    (codes.collect(), plane)
}

/// What codes and scales stand for.
fn decoded((codes, plane): &(Vec<u8>, Vec<f32>)) -> Vec<f64> {
    let each = codes.iter().enumerate().map(|(at, code)| {
        let scale = plane[at % COLUMNS / 128 * PITCH + at / COLUMNS];
        f64::from(RULE.to.value(*code)) * f64::from(scale)
    });
    each.collect()
}

/// The amax of each block, row by row.
fn amaxes(numbers: &[f32]) -> Vec<Magnitude> {
    let blocks = numbers.chunks(COLUMNS).flat_map(|row| row.chunks(128));
    let exact = |value: &f32| (f64::from(*value), 0.0);
    let of = |block: &[f32]| Magnitude::of(block.iter().map(exact), true);
    blocks.map(of).collect()
}

fn least(amaxes: &[Magnitude]) -> Vec<f32> {
    let each = amaxes.iter();
    let each = each.map(|amax| Made::of(&RULE, amax).least_code(&RULE) as f32);
    each.collect()
}

/// A result.
struct Wrote {
    bytes: Vec<u8>,
    /// The scales of its codes, if they have some of their own.
    plane: Option<Vec<f32>>,
    /// What it stands for.
    numbers: Vec<f64>,
}

impl Wrote {
    /// One that has that mistake: of several terms the first.
    fn new(case: Case, mistake: Mistake) -> Wrote {
        match case {
            Case::Codes => {
                let coded = coded(&numbers(0), mistake);
                let numbers = decoded(&coded);
                let (bytes, plane) = coded;
                Wrote {
                    bytes,
                    plane: Some(plane),
                    numbers,
                }
            }
            Case::Given | Case::OfNan => {
                let by = if mistake == Mistake::Scale { 2.0 } else { 1.0 };
                let code = |number: f32| code(number * by * GIVEN, mistake);
                let bytes: Vec<u8> = numbers(0).into_iter().map(code).collect();
                let value = |code: &u8| f64::from(RULE.to.value(*code)) / f64::from(GIVEN);
                Wrote {
                    numbers: bytes.iter().map(value).collect(),
                    bytes,
                    plane: None,
                }
            }
            Case::Sums | Case::SumsAndOwn => {
                let mut sums = vec![0f64; COUNT];
                for (part, numbers) in case.products().iter().enumerate() {
                    let mistake = if part == 0 { mistake } else { Mistake::Nothing };
                    let codes = decoded(&coded(numbers, mistake));
                    for (at, sum) in sums.iter_mut().enumerate() {
                        *sum += match case.is_code(part, at) {
                            true => codes[at],
                            false => f64::from(numbers[at]),
                        };
                    }
                }
                let sums: Vec<f32> = sums.into_iter().map(|sum| sum as f32).collect();
                Wrote {
                    bytes: sums.iter().flat_map(|sum| sum.to_le_bytes()).collect(),
                    plane: None,
                    numbers: sums.into_iter().map(f64::from).collect(),
                }
            }
        }
    }

    /// How many of its elements are wrong.
    fn wrong(&self, case: Case) -> u32 {
        let none = Address::default();
        let bounds = case.terms([none; 3]).bounds(case.dtype(), case.scale(none));
        let products = case.products();
        let least: Vec<_> = products.iter().map(|part| least(&amaxes(part))).collect();
        let is_wrong = |at: &usize| {
            let block = at / COLUMNS * LINES + at % COLUMNS / 128;
            let term = |part: usize| Term {
                value: f64::from(products[part][*at]),
                off: 0.0,
                least: case.is_code(part, *at).then_some(least[part][block]),
            };
            let terms: Vec<Term> = (0..products.len()).map(term).collect();
            !bounds.allow(self.numbers[*at], &terms)
        };
        (0..COUNT).filter(is_wrong).count() as u32
    }
}

/// Whether those are the same, or both NaN.
fn same(got: &[Magnitude], want: &[Magnitude]) -> bool {
    let bits = |found: &Magnitude| {
        let numbers = [found.value, found.least, found.most];
        numbers.map(|number| {
            if number.is_nan() {
                u64::MAX
            } else {
                number.to_bits()
            }
        })
    };
    got.iter().map(bits).eq(want.iter().map(bits))
}

impl Fp8 {
    /// Tests the comparison of codes, and of sums of such: it finds as many wrong as the host does.
    pub(super) fn see_wrong_codes(&self) -> Result<(), Error> {
        let mut told = Vec::new();
        for case in Case::ALL {
            // All have the same stride, so some of each matrix is not read.
            let (mut value, mut floors) = (Vec::new(), vec![0f32; 2 * PARTS * COUNT]);
            for (part, numbers) in case.products().iter().enumerate() {
                value.extend(numbers.iter().map(|number| f64::from(*number).to_bits()));
                let least = least(&amaxes(numbers));
                floors[2 * part * COUNT..][..least.len()].copy_from_slice(&least);
            }
            let value = Local::of(&self.stream, &value)?;
            let allowed: Local<f32> = Local::zeros(&self.stream, 2 * PARTS * COUNT)?;
            let floors = Local::of(&self.stream, &floors)?;
            let terms = case.terms([value.address(), allowed.address(), floors.address()]);
            let [rows, columns] = [ROWS, COLUMNS].map(|size| size as u32);
            let found = self.magnitudes(terms.exact, [rows, columns])?;
            if !same(&found, &amaxes(&case.products()[0])) {
                told.push(format!("{case:?}: amaxes of blocks are wrong"));
            }
            for mistake in Mistake::ALL {
                let wrote = Wrote::new(case, mistake);
                let bytes = Local::of(&self.stream, &wrote.bytes)?;
                let plane = wrote.plane.as_ref();
                let plane = plane.map(|plane| Local::of(&self.stream, plane));
                let plane = plane.transpose()?;
                let got = Got {
                    at: bytes.address(),
                    dtype: case.dtype(),
                    rows: Extent {
                        start: FIRST as u32,
                        end: FIRST as u32 + rows,
                    },
                    columns,
                    scale: case.scale(plane.as_ref().map(Local::address).unwrap_or_default()),
                };
                let (host, found) = (
                    wrote.wrong(case),
                    self.differ_exactly(got, terms, None)?.wrong,
                );
                if found != host {
                    told.push(format!(
                        "{mistake:?} in {case:?}: {found} of {COUNT} are wrong, and {host} on the host"
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
        let all = COUNT as u32;
        for case in Case::ALL {
            for mistake in Mistake::ALL {
                let found = Wrote::new(case, mistake).wrong(case);
                match (case, mistake) {
                    (Case::OfNan, _) | (_, Mistake::Nan) => assert_eq!(found, all, "{case:?}"),
                    (_, Mistake::Nothing) => assert_eq!(found, 0, "{case:?}"),
                    (Case::Codes, _) | (Case::Given, Mistake::Code) => {
                        assert_eq!(found, all, "{case:?} {mistake:?}");
                    }
                    // Next to larger terms a small one's mistake is lost, and numbers that are too large saturate by any scale.
                    (Case::Given | Case::Sums | Case::SumsAndOwn, _) => {
                        assert!(
                            found > all / 10 && found < all,
                            "{case:?} {mistake:?}: {found}"
                        );
                    }
                }
            }
        }
    }

    /// Counts differ by whose rows they are, and by what saturates.
    #[test]
    fn a_ranks_own_products_and_the_largest_codes_change_what_is_wrong() {
        let sums = [Case::Sums, Case::SumsAndOwn];
        let own = Wrote::new(Case::SumsAndOwn, Mistake::Nothing);
        let coded = Wrote::new(Case::Sums, Mistake::Nothing);
        assert_eq!(sums.map(|case| own.wrong(case)), [0; 2]);
        assert!(coded.wrong(Case::SumsAndOwn) > 0, "as if none was a code");
        let of_code = sums.map(|case| Wrote::new(Case::SumsAndOwn, Mistake::Code).wrong(case));
        assert!(of_code[0] < of_code[1], "{of_code:?}");
        let given = Wrote::new(Case::Given, Mistake::Nothing).numbers;
        let largest = f64::from(RULE.to.dtype().largest() / GIVEN);
        let saturated = given
            .iter()
            .filter(|number| number.abs() == largest)
            .count();
        assert!(saturated > COUNT / 10 && saturated < COUNT, "{saturated}");
    }
}
