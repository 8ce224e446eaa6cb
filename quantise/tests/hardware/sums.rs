//! How tensor cores add products of FP8, bit for bit beside a model: what the emulator's bound of such sums is derived from.

use crate::{fine, on_gpu};
use counterflow_emulator::Numbers;
use counterflow_quantise::Fp8;
use counterflow_runtime::Communicator;
use counterflow_runtime::cuda::{Arguments, LaunchConfig, Module};
use counterflow_runtime::jit::{Compiler, Source, Target};

/// Rows, columns and depth of one multiply.
const ROWS: usize = 64;
const COLUMNS: usize = 8;
const DEPTH: usize = 32;
/// Products of `ROWS` × `COLUMNS` in a launch.
const CASES: usize = 96;
/// The types that a multiply takes.
pub const PAIRS: [[Fp8; 2]; 3] = [
    [Fp8::E4M3, Fp8::E4M3],
    [Fp8::E4M3, Fp8::E5M2],
    [Fp8::E5M2, Fp8::E4M3],
];

/// A CTA multiplies [64, 32 · steps] by the transpose of [8, 32 · steps] on top of what the sums were before: `a` from
/// registers, `b` from shared memory without a swizzle, in two core matrices of 8 rows × 16 bytes.
const TEXT: &str = r#"
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
extern "C" __global__ void __launch_bounds__(128) sums(const u8* a, const u8* b, const float* before, float* after, u32 steps) {
    __shared__ __align__(128) u8 tile[256];
    const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2, depth = 32 * steps;
    const u8* left = a + (u64)(blockIdx.x * 64 + row) * depth + lane % 4 * 4;
    const u32 first = (blockIdx.x * 64 + row) * 8 + column, second = first + 64;
    float s0 = before[first], s1 = before[first + 1], s2 = before[second], s3 = before[second + 1];
    const u32 shared = (u32)__cvta_generic_to_shared(tile) >> 4 & 0x3fff;
    const u64 descriptor = (u64)8 << 32 | (u64)8 << 16 | shared;
    for (u32 step = 0; step < steps; ++step) {
        for (u32 at = threadIdx.x; at < 256; at += 128)
            tile[at] = b[(u64)(blockIdx.x * 8 + at % 128 / 16) * depth + step * 32 + at / 128 * 16 + at % 16];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        u32 r[4];
        for (u32 i = 0; i < 4; ++i) r[i] = *(const u32*)(left + (u64)(i % 2 * 8) * depth + step * 32 + i / 2 * 16);
        asm volatile(
            "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
            "wgmma.fence.sync.aligned;\n"
            "wgmma.mma_async.sync.aligned.m64n8k32.f32." LEFT "." RIGHT " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;\n"
            "wgmma.commit_group.sync.aligned;\n"
            "wgmma.wait_group.sync.aligned 0;\n}"
            : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
            : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(descriptor)
            : "memory");
        __syncthreads();
    }
    after[first] = s0, after[first + 1] = s1, after[second] = s2, after[second + 1] = s3;
}
"#;

/// The text for two types.
pub fn text([left, right]: [Fp8; 2]) -> String {
    let name = |of: Fp8| match of {
        Fp8::E4M3 => "e4m3",
        Fp8::E5M2 => "e5m2",
    };
    let defines = format!(
        "#define LEFT \"{}\"\n#define RIGHT \"{}\"\n",
        name(left),
        name(right)
    );
    defines + TEXT
}

/// How a step of 32 products and the sum before it may be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Model {
    /// Bits kept below the largest exponent.
    bits: i32,
    /// Products added at once.
    group: usize,
    /// Whether a product's exponent is that of its value, instead of the sum of its factors'.
    normal: bool,
    /// Whether what is cut off leaves the next number below, instead of that nearer to zero.
    floor: bool,
    /// Whether a product that is zero has an exponent.
    zero: bool,
}

/// The one that we believe in.
const MODEL: Model = Model {
    bits: 13,
    group: DEPTH,
    normal: false,
    floor: false,
    zero: false,
};

/// The exponent of a number.
fn exponent(value: f64) -> i32 {
    let biased = (value.to_bits() >> 52 & 0x7ff) as i32;
    biased - 1023
}

/// Exact: all that this file has are within the range of f64's normal numbers.
fn power(of: i32) -> f64 {
    f64::from_bits(((of + 1023) as u64) << 52)
}

/// A factor: its value and the exponent that its code has.
type Factor = (f64, i32);

fn factor(of: Fp8, code: u8) -> Factor {
    let (bits, bias) = match of {
        Fp8::E4M3 => (3, 7),
        Fp8::E5M2 => (2, 15),
    };
    let field = i32::from(code & 0x7f) >> bits;
    (f64::from(of.value(code)), field.max(1) - bias)
}

impl Model {
    /// A sum with more products.
    fn add(self, before: f32, products: &[(Factor, Factor)]) -> f32 {
        let mut sum = before;
        for group in products.chunks(self.group) {
            sum = self.add_at_once(sum, group);
        }
        sum
    }

    fn add_at_once(self, before: f32, products: &[(Factor, Factor)]) -> f32 {
        let before = f64::from(before);
        let of = |(a, b): &(Factor, Factor)| {
            let value = a.0 * b.0;
            let at = match self.normal && value != 0.0 {
                true => exponent(value),
                false => a.1 + b.1,
            };
            (value, (value != 0.0 || self.zero).then_some(at))
        };
        let own = (before != 0.0).then(|| exponent(before));
        let all = products.iter().map(of).chain([(before, own)]);
        let Some(most) = all.clone().filter_map(|(_, exponent)| exponent).max() else {
            return 0.0;
        };
        let unit = power(most - self.bits);
        let cut = |value: f64| match self.floor {
            true => value.floor(),
            false => value.trunc(),
        };
        let sum: f64 = all.map(|(value, _)| cut(value / unit)).sum();
        if sum == 0.0 {
            return 0.0;
        }
        let last = power(exponent(sum) - self.bits).max(1.0);
        #[expect(clippy::cast_possible_truncation, reason = "it has few bits")]
        let sum = ((sum / last).trunc() * last * unit) as f32;
        sum
    }
}

/// What is multiplied, and what the sums are before.
struct Given {
    pair: [Fp8; 2],
    steps: usize,
    a: Vec<u8>,
    b: Vec<u8>,
    before: Vec<f32>,
}

impl Given {
    fn new(pair: [Fp8; 2], steps: usize, seed: u64) -> Given {
        let mut numbers = Numbers::new(seed);
        let depth = DEPTH * steps;
        let mut codes = |of: Fp8, rows: usize| -> Vec<u8> {
            let mut codes: Vec<u8> = Vec::with_capacity(CASES * rows * depth);
            for at in 0..CASES * rows * depth {
                let any = numbers.below(256) as u8;
                let near: u64 = (0..4).map(|_| numbers.below(1 << 16)).sum();
                let near = of.code((near as f32 / 65536.0 - 2.0) * 16.0);
                let code = match at / (rows * depth) % 4 {
                    0 => near,
                    1 => any,
                    // Numbers next to zero, some of them subnormal.
                    2 => any & 0x8f,
                    // Pairs that nearly cancel out.
                    _ if at % 2 == 1 && rows == ROWS => codes[at - 1] ^ 0x80,
                    _ if at % 2 == 1 => codes[at - 1] ^ (any & 1),
                    _ => near,
                };
                let value = of.value(code);
                codes.push(if value.is_finite() { code } else { 0x31 });
            }
            codes
        };
        let (a, b) = (codes(pair[0], ROWS), codes(pair[1], COLUMNS));
        let before = (0..CASES * ROWS * COLUMNS).map(|at| {
            let sum: u64 = (0..4).map(|_| numbers.below(1 << 20)).sum();
            let plain = sum as f32 / f32::from_bits(0x4980_0000) - 2.0;
            plain * [0.0, 1.0, 1024.0, 1e-3, 1e-6, 3e7][at / (ROWS * COLUMNS) / 4 % 6]
        });
        let before = before.collect();
        Given {
            pair,
            steps,
            a,
            b,
            before,
        }
    }

    /// The products of each step of a sum.
    fn products(&self, at: usize) -> Vec<Vec<(Factor, Factor)>> {
        let depth = DEPTH * self.steps;
        let (case, row, column) = (at / (ROWS * COLUMNS), at / COLUMNS % ROWS, at % COLUMNS);
        let a = &self.a[(case * ROWS + row) * depth..][..depth];
        let b = &self.b[(case * COLUMNS + column) * depth..][..depth];
        let both = |(a, b): (&u8, &u8)| (factor(self.pair[0], *a), factor(self.pair[1], *b));
        let all: Vec<_> = a.iter().zip(b).map(both).collect();
        all.chunks(DEPTH).map(<[_]>::to_vec).collect()
    }

    fn by(&self, model: Model, at: usize) -> f32 {
        let steps = self.products(at);
        let add = |sum, step: &Vec<_>| model.add(sum, step);
        steps.iter().fold(self.before[at], add)
    }

    /// The exact sum, and what the emulator allows for one step: 34 bits that are cut off, each of the largest term.
    fn exact(&self, at: usize) -> (f64, f64) {
        let steps = self.products(at);
        let values = steps.iter().flatten().map(|(a, b)| a.0 * b.0);
        let before = f64::from(self.before[at]);
        let size: f64 = values.clone().map(f64::abs).sum::<f64>() + before.abs();
        let allowed = size * 34.0 / 8192.0 * self.steps as f64;
        (before + values.sum::<f64>(), allowed)
    }

    fn on(&self, rank: &Communicator) -> Vec<f32> {
        let text = text(self.pair);
        let source = Source::new("sums", &text);
        let compiled = Compiler::find().and_then(|found| found.compile(&source, Target::Sm90a));
        let compiled = fine(compiled);
        let module = fine(
            rank.gpu()
                .cuda()
                .and_then(|gpu| Module::load(gpu, &compiled)),
        );
        let sums = fine(module.function("sums", 0));
        let a = fine(rank.zeros::<u8>([self.a.len()]));
        let b = fine(rank.zeros::<u8>([self.b.len()]));
        let before = fine(rank.zeros::<f32>([self.before.len()]));
        let after = fine(rank.zeros::<f32>([self.before.len()]));
        fine(a.write(&self.a));
        fine(b.write(&self.b));
        fine(before.write(&self.before));
        fine(after.fill(0xff));
        let mut arguments = Arguments::new();
        let addresses = [a.address(), b.address(), before.address(), after.address()];
        for address in addresses {
            arguments.address(address);
        }
        arguments.number(self.steps as u32);
        let stream = fine(rank.stream().cuda());
        // SAFETY: it reads and writes as many elements as these tensors have, which are read after it in the same stream.
        fine(unsafe { sums.launch(stream, LaunchConfig::of(CASES as u32, 128), &arguments) });
        fine(after.read())
    }
}

/// How many sums a model has not, among the first ones.
fn missed(model: Model, given: &Given, got: &[f32]) -> usize {
    let some = got.iter().enumerate().step_by(7);
    some.filter(|(at, sum)| given.by(model, *at).to_bits() != sum.to_bits())
        .count()
}

#[test]
fn sums_have_the_bits_of_the_model() {
    let Some(rank) = on_gpu() else { return };
    let mut wrong = 0;
    for (seed, pair) in (1..).zip(PAIRS) {
        for steps in [1, 2, 8] {
            let given = Given::new(pair, steps, seed);
            let got = given.on(&rank);
            let mut worst: f64 = 0.0;
            let mut differ = Vec::new();
            for (at, sum) in got.iter().enumerate() {
                let (exact, allowed) = given.exact(at);
                let off = (f64::from(*sum) - exact).abs();
                assert!(
                    off <= allowed,
                    "{pair:?}, {steps} steps: {sum}, not {exact}"
                );
                worst = worst.max(if off == 0.0 { 0.0 } else { off / allowed });
                // A zero may have either sign.
                let wanted = given.by(MODEL, at);
                if wanted != *sum {
                    differ.push((at, *sum, wanted));
                }
            }
            println!(
                "  {pair:?}, {steps} steps: {} of {} sums are the model's; at most {worst:.3} of what is allowed",
                got.len() - differ.len(),
                got.len()
            );
            if differ.is_empty() {
                continue;
            }
            wrong += differ.len();
            for (at, sum, wanted) in differ.iter().take(4) {
                let before = given.before[*at];
                println!("    sum {at} on {before:e} is {sum:e}, the model's {wanted:e}");
            }
            for bits in 11..=15 {
                for group in [8, 16, DEPTH] {
                    for choice in 0..8 {
                        let model = Model {
                            bits,
                            group,
                            normal: choice & 1 != 0,
                            floor: choice & 2 != 0,
                            zero: choice & 4 != 0,
                        };
                        let missed = missed(model, &given, &got);
                        if missed < got.len() / 70 {
                            println!("    {model:?} misses {missed}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(wrong, 0, "sums that are not the model's");
}

/// By hand, where 2 of 13 bits decide.
#[test]
fn the_model_cuts_off_what_is_below_13_bits() {
    let one: Factor = (1.0, 0);
    let small = |bits: i32| ((power(-bits), -bits), one);
    let add = |before: f32, products: &[(Factor, Factor)]| MODEL.add(before, products);
    assert_eq!(add(0.0, &[(one, one), small(13)]), 1.0 + 1.0 / 8192.0);
    assert_eq!(add(0.0, &[(one, one), small(14), small(14)]), 1.0);
    assert_eq!(add(1.0, &[small(14), small(14)]), 1.0);
    // Cut towards zero on both sides, and without a sign of its own.
    assert_eq!(add(-1.0, &[small(14)]), -1.0);
    assert_eq!(add(0.0, &[]), 0.0);
    // A sum that needs one bit more loses its last.
    let steps = [(one, one), (one, one), small(13)];
    assert_eq!(add(0.0, &steps), 2.0);
    let normal = Model {
        normal: true,
        ..MODEL
    };
    let wide: Factor = (1.75, 0);
    let both = [(wide, wide), small(13), small(13)];
    assert_eq!(add(0.0, &both), 3.0625 + 1.0 / 4096.0);
    assert_eq!(normal.add(0.0, &both), 3.0625);
    assert_eq!(factor(Fp8::E4M3, 0x01), (2f64.powi(-9), -6));
    assert_eq!(factor(Fp8::E5M2, 0x3c), (1.0, 0));
}
