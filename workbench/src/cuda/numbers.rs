//! Numbers for measurements, made and compared on the GPU. Operands of gigabytes would take the host minutes.

use super::elements;
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::Error;
use counterflow_runtime::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow_runtime::driver::{Address, Gpu, Local, Stream};
use counterflow_runtime::jit::{Compiled, Compiler, Source, Target};

const TEXT: &str = include_str!("numbers.cu");
pub(super) const GRID: LaunchConfig = LaunchConfig::of(528, 256);

/// Random numbers and comparisons on one GPU.
#[derive(Debug)]
pub(crate) struct Numbers {
    normal: Function,
    differ: Function,
    differ_fused: Function,
    gate: Function,
    stream: Stream,
}

/// A run of elements of a random sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Draw {
    /// The sequence.
    pub seed: u64,
    /// The index of the first element.
    pub first: u64,
    /// The number of elements.
    pub count: u64,
}

/// Matrices to compare: one, and the parts whose sum it should be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Compare {
    /// Results that are looked at.
    pub got: Address,
    /// The first part of what it should be.
    pub want: Address,
    /// Bytes from a part to the next.
    pub stride: u64,
    /// Number of parts.
    pub parts: u32,
    /// Elements of each.
    pub count: u64,
    /// Products in each part's elements.
    pub depth: u32,
}

/// A result, and the unrounded product that it is made from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CompareFused {
    /// Results that are looked at.
    pub got: Address,
    /// Element type of the results.
    pub dtype: Dtype,
    /// The product, in f32.
    pub product: Address,
    /// The second product of a gated activation, in f32.
    pub up: Option<Address>,
    /// The vector that is added to every row, and its type.
    pub bias: Option<(Address, Dtype)>,
    /// The function applied then.
    pub activation: Activation,
    /// The matrix that is added last, and its type.
    pub added: Option<(Address, Dtype)>,
    /// Elements of the result.
    pub count: u64,
    /// Elements of a row.
    pub columns: u32,
    /// Products in each element.
    pub depth: u32,
    /// The activation's allowed error, in units of its argument.
    pub steep: f32,
}

/// Functions that both we and cuBLASLt have, at least nearly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Activation {
    /// None.
    #[default]
    Nothing,
    /// GELU by the error function.
    Gelu,
    /// GELU by tanh.
    GeluTanh,
}

/// Difference of two results.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Difference {
    /// Elements that are off by more than rounding allows, with NaNs.
    pub wrong: u32,
    /// The largest distance, as a multiple of what rounding allows, without NaNs.
    pub worst: f32,
}

impl Difference {
    /// Difference of two results together.
    pub(crate) fn and(self, other: Difference) -> Difference {
        Difference {
            wrong: self.wrong.saturating_add(other.wrong),
            worst: self.worst.max(other.worst),
        }
    }
}

impl Numbers {
    /// Compiles and loads the kernels that make and compare numbers.
    ///
    /// # Errors
    /// What the compiler or the driver refuses.
    pub(crate) fn load(gpu: &Gpu, stream: &Stream, compiler: &Compiler) -> Result<Numbers, Error> {
        let module = Module::load(gpu.cuda()?, &Numbers::compile(compiler)?)?;
        let numbers = Numbers {
            normal: module.function("normal", 0)?,
            differ: module.function("differ", 0)?,
            differ_fused: module.function("differ_fused", 0)?,
            gate: module.function("gate", 0)?,
            stream: stream.clone(),
        };
        numbers.see_mistakes()?;
        Ok(numbers)
    }

    /// Tests the comparison on equal and on different numbers: a comparison that cannot fail says nothing.
    fn see_mistakes(&self) -> Result<(), Error> {
        const COUNT: u64 = 4096;
        let words = |seed| -> Result<Local<u16>, Error> {
            let words = Local::zeros(&self.stream, COUNT as usize)?;
            let draw = Draw {
                seed,
                first: 0,
                count: COUNT,
            };
            self.normal(words.address(), Dtype::Bf16, draw)?;
            Ok(words)
        };
        let (same, again, other) = (words(1)?, words(1)?, words(2)?);
        let wrong = |got: &Local<u16>| {
            let compare = Compare {
                got: got.address(),
                want: same.address(),
                stride: 0,
                parts: 1,
                count: COUNT,
                depth: 1,
            };
            Ok::<_, Error>(u64::from(self.differ(Dtype::Bf16, compare)?.wrong))
        };
        let equal = wrong(&again)?;
        // Two random numbers are hardly ever within a unit in the last place.
        let unequal = wrong(&other)?;
        again.fill(0xff)?;
        let nan = wrong(&again)?;
        if equal == 0 && unequal > COUNT * 9 / 10 && nan == COUNT {
            return self.see_fused_mistakes(&same, &other);
        }
        Err(Error::Wrong {
            what: format!(
                "of {COUNT} numbers the comparison reports {equal} equal ones, {unequal} different ones and {nan} NaNs as wrong"
            ),
            help: "report it with the GPU and the driver: no result can be trusted here".into(),
        })
    }

    /// Checks that mistakes in epilogues are seen: one without a function, one with a function, one with another
    /// function.
    fn see_fused_mistakes(&self, same: &Local<u16>, other: &Local<u16>) -> Result<(), Error> {
        let count = same.len() as u64;
        let product: Local<f32> = Local::zeros(&self.stream, same.len())?;
        let draw = Draw {
            seed: 1,
            first: 0,
            count,
        };
        self.normal(product.address(), Dtype::F32, draw)?;
        let wrong = |got: &Local<u16>, activation| {
            let compare = CompareFused {
                got: got.address(),
                dtype: Dtype::Bf16,
                product: product.address(),
                up: None,
                bias: None,
                activation,
                added: None,
                count,
                columns: 1,
                depth: 1,
                steep: 0.0,
            };
            Ok::<_, Error>(u64::from(self.differ_fused(compare)?.wrong))
        };
        let equal = wrong(same, Activation::Nothing)?;
        let unequal = wrong(other, Activation::Nothing)?;
        let [erf, tanh] =
            [Activation::Gelu, Activation::GeluTanh].map(|activation| wrong(same, activation));
        let (erf, tanh) = (erf?, tanh?);
        let most = count * 9 / 10;
        if equal == 0 && [unequal, erf, tanh].iter().all(|wrong| *wrong > most) {
            return Ok(());
        }
        Err(Error::Wrong {
            what: format!(
                "of {count} products the comparison reports {equal} equal ones, {unequal} different ones, and {erf} and {tanh} without their GELU as wrong"
            ),
            help: "report it with the GPU and the driver: no result can be trusted here".into(),
        })
    }

    /// The machine code of all.
    ///
    /// # Errors
    /// What the compiler refuses.
    fn compile(compiler: &Compiler) -> Result<Compiled, Error> {
        compiler.compile(&Source::new("numbers", TEXT), Target::Sm90a)
    }

    /// Writes normally distributed numbers of mean 0 and variance 1. The caller's memory must be large enough.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn normal(&self, to: Address, dtype: Dtype, draw: Draw) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        arguments.address(to);
        for number in [draw.count, draw.seed, draw.first] {
            arguments.bytes(&number.to_le_bytes());
        }
        arguments.number(elements::ours(dtype));
        // SAFETY: it writes `count` elements at `to`, which the caller's memory holds, and waits for nothing.
        unsafe { self.normal.launch(self.stream.cuda()?, GRID, &arguments) }
    }

    /// Compares, once the stream is done.
    ///
    /// Both sides were summed in f32 in different orders and rounded to the type, so an element may differ by one unit
    /// in the last place: 2 half units, relative to its size. In a sum of parts each part was rounded, and the sum once
    /// more. f32 sums of `depth` products of normal numbers also differ by some of their own roundings, which matters
    /// if the result is near zero.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub(crate) fn differ(&self, dtype: Dtype, compare: Compare) -> Result<Difference, Error> {
        let element = operand(dtype)?;
        let unit = 2.0 * dtype.unit_roundoff() as f32;
        // A tenth more: the size is that of the rounded values.
        let relative = 1.1 * unit * if compare.parts > 1 { 1.5 } else { 1.0 };
        let absolute = off_of_sums(compare.depth) * compare.parts as f32;
        let found: Local<u32> = Local::zeros(&self.stream, 2)?;
        let mut arguments = Arguments::new();
        arguments.address(compare.got);
        arguments.address(compare.want);
        arguments.bytes(&compare.stride.to_le_bytes());
        arguments.number(compare.parts);
        arguments.bytes(&compare.count.to_le_bytes());
        arguments.number(element);
        arguments.bytes(&relative.to_le_bytes());
        arguments.bytes(&absolute.to_le_bytes());
        arguments.address(found.address());
        // SAFETY: it reads `count` elements of each matrix, which the caller's memory holds, and writes what was found.
        unsafe { self.differ.launch(self.stream.cuda()?, GRID, &arguments) }?;
        Difference::read(&found)
    }

    /// SiLU of the first matrix times the second.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn gate(
        &self,
        operands: [Address; 2],
        to: Address,
        dtype: Dtype,
        count: u64,
    ) -> Result<(), Error> {
        let element = operand(dtype)?;
        let mut arguments = Arguments::new();
        for address in operands.into_iter().chain([to]) {
            arguments.address(address);
        }
        arguments.bytes(&count.to_le_bytes());
        arguments.number(element);
        // Eight elements a thread, as many CTAs as that takes.
        let each = u64::from(GRID.threads) * 8;
        let grid = LaunchConfig {
            ctas: count.div_ceil(each) as u32,
            ..GRID
        };
        // SAFETY: it reads and writes `count` elements of matrices that the caller's memory holds.
        unsafe { self.gate.launch(self.stream.cuda()?, grid, &arguments) }
    }

    /// Compares with the epilogue of a product, once the stream is done.
    ///
    /// The result is rounded once, by half a unit in the last place. f32 sums differ as in [`Numbers::differ`]; no
    /// function here is steeper than 1.13.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub(crate) fn differ_fused(&self, compare: CompareFused) -> Result<Difference, Error> {
        let relative = 1.1 * compare.dtype.unit_roundoff() as f32;
        let absolute = 1.13 * off_of_sums(compare.depth);
        let found: Local<u32> = Local::zeros(&self.stream, 2)?;
        let none = Address::default();
        let [(bias, of_bias), (added, of_added)] =
            [compare.bias, compare.added].map(|given| given.unwrap_or((none, compare.dtype)));
        let mut arguments = Arguments::new();
        let up = compare.up.unwrap_or(none);
        for address in [compare.got, compare.product, up, bias, added] {
            arguments.address(address);
        }
        arguments.bytes(&compare.count.to_le_bytes());
        arguments.number(compare.columns);
        for dtype in [compare.dtype, of_bias, of_added] {
            arguments.number(elements::ours(dtype));
        }
        arguments.number(match compare.activation {
            Activation::Nothing => 0,
            Activation::Gelu => 1,
            Activation::GeluTanh => 2,
        });
        for bound in [relative, absolute, compare.steep] {
            arguments.bytes(&bound.to_le_bytes());
        }
        arguments.address(found.address());
        // SAFETY: it reads `count` elements of each matrix and `columns` of the bias, which the caller's memory holds,
        // and writes what was found.
        unsafe {
            self.differ_fused
                .launch(self.stream.cuda()?, GRID, &arguments)
        }?;
        Difference::read(&found)
    }
}

impl Difference {
    pub(super) fn read(found: &Local<u32>) -> Result<Difference, Error> {
        let found = found.read()?;
        Ok(Difference {
            wrong: found[0],
            worst: f32::from_bits(found[1]),
        })
    }
}

/// Deviation of an f32 sum of so many products of normal numbers, in any order.
pub(crate) fn off_of_sums(depth: u32) -> f32 {
    1e-4 * (depth as f32).sqrt()
}

/// The number of an operand's element type in the kernels' text.
fn operand(dtype: Dtype) -> Result<u32, Error> {
    if dtype == Dtype::F32 {
        return Err(Error::NotYet {
            what: "measuring f32".into(),
            help: "use --dtype bf16 or f16".into(),
        });
    }
    Ok(elements::ours(dtype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::compiler;

    #[test]
    fn what_measurements_run_on_the_gpu_compiles() {
        let Some(compiler) = compiler() else { return };
        let compiled = Numbers::compile(&compiler).unwrap_or_else(|error| panic!("{error}"));
        let mut kernels: Vec<_> = compiled
            .facts
            .iter()
            .map(|facts| (&facts.name[..], facts.frame, facts.parameter_count))
            .collect();
        kernels.sort_unstable();
        assert_eq!(
            kernels,
            [
                ("differ", 0, 9),
                ("differ_fused", 0, 15),
                ("gate", 0, 5),
                ("normal", 0, 5)
            ]
        );
    }
}
