//! The quantisers' CUDA: what the JIT compiles.

use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::rule::{Convention, Fp8, ScaleRule};

/// Text of scales, which that of rules includes.
pub const SCALE_HEADER: (&str, &str) = ("scale.cuh", counterflow_emitter::SCALE);

/// Text of the rules that scales are made by: kernels of other crates that quantise include it.
pub const RULE_HEADER: (&str, &str) = ("rule.cuh", include_str!("kernels/rule.cuh"));

/// Texts that kernels include.
pub const HEADERS: [(&str, &str); 5] = [
    SCALE_HEADER,
    RULE_HEADER,
    ("elements.cuh", include_str!("kernels/elements.cuh")),
    ("tiles.cuh", include_str!("kernels/tiles.cuh")),
    ("whole.cuh", include_str!("kernels/whole.cuh")),
];

/// Origin of the elements' scale.
///
/// ```
/// use counterflow_quantise::{Granularity, Scaling};
///
/// assert_eq!(Scaling::Current(Granularity::BLOCK_128X128).name(), "square");
/// assert_eq!(Scaling::Delayed.name(), "delayed");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scaling {
    /// From their own amax.
    Current(Granularity),
    /// One for all, from the amaxes of earlier steps.
    Delayed,
}

impl Scaling {
    /// Name of the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Scaling::Current(Granularity::PerTensor) => "whole",
            Scaling::Delayed => "delayed",
            Scaling::Current(Granularity::PerRow) => "rows",
            Scaling::Current(Granularity::Block(block)) if block.is_1d() => "one_by_128",
            Scaling::Current(Granularity::Block(_)) => "square",
        }
    }
}

/// Work of a quantiser.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_quantise::{Fp8, Granularity, Recipe, ScaleRule, Scaling};
///
/// let recipe = Recipe::new(ScaleRule::deep_gemm(), Scaling::Current(Granularity::BLOCK_1X128), Dtype::Bf16);
/// assert!(!recipe.transposed && recipe.with_transposed().transposed);
/// println!("{}", recipe.tiles()); // CUDA
/// # assert_eq!(recipe.rule.to, Fp8::E4M3);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recipe {
    /// ScaleRule by which an amax becomes a scale. Of delayed scaling only the type of the codes counts: [`Delayed`](crate::Delayed) says
    /// the rest.
    pub rule: ScaleRule,
    /// The amax that is taken.
    pub scaling: Scaling,
    /// The type that is quantised: bf16, f16 or f32.
    pub from: Dtype,
    /// True if there is a transposed copy, too.
    pub transposed: bool,
    /// True if the one scale of a whole tensor, of its own amax or of earlier ones, is written once for each row.
    pub each_row: bool,
}

impl Recipe {
    /// Without a transposed copy.
    pub const fn new(rule: ScaleRule, scaling: Scaling, from: Dtype) -> Recipe {
        Recipe {
            rule,
            scaling,
            from,
            transposed: false,
            each_row: false,
        }
    }

    /// Elements that share a scale in memory.
    ///
    /// ```
    /// use counterflow_codegen::dtype::Dtype;
    /// use counterflow_quantise::{Granularity, Recipe, ScaleRule, Scaling};
    ///
    /// let recipe = Recipe::new(ScaleRule::deep_gemm(), Scaling::Current(Granularity::PerTensor), Dtype::Bf16);
    /// assert_eq!(recipe.granularity(), Granularity::PerTensor);
    /// assert_eq!(recipe.with_scale_in_each_row().granularity(), Granularity::PerRow);
    /// ```
    pub const fn granularity(&self) -> Granularity {
        match self.scaling {
            _ if self.each_row => Granularity::PerRow,
            Scaling::Current(granularity) => granularity,
            Scaling::Delayed => Granularity::PerTensor,
        }
    }

    /// Adds a transposed copy.
    #[must_use]
    pub const fn with_transposed(self) -> Recipe {
        Recipe {
            transposed: true,
            ..self
        }
    }

    /// Writes the one scale of a whole tensor in each of its rows: so it travels with them, where a product has scales of
    /// rows. Ranks that quantise a shard each need no common amax then.
    ///
    /// ```
    /// use counterflow_codegen::dtype::Dtype;
    /// use counterflow_quantise::{Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling};
    /// # use counterflow_runtime::Communicator;
    /// # use {float8::F8E4M3, half::bf16};
    ///
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let rule = ScaleRule::transformer_engine(Fp8::E4M3);
    /// let recipe = Recipe::new(rule, Scaling::Current(Granularity::PerTensor), Dtype::Bf16).with_scale_in_each_row();
    /// let quantiser = Quantiser::build(rank, recipe, [3, 16])?;
    /// # let (x, mut codes, mut scales) = (rank.zeros::<bf16>([3, 16])?, rank.zeros::<F8E4M3>([3, 16])?, rank.zeros::<f32>([3])?);
    /// x.write(&[bf16::from_f32(224.0); 3 * 16])?;
    /// quantiser.on(rank, [3, 16]).x(&x).codes(&mut codes).scales(&mut scales).launch()?.wait()?;
    /// assert_eq!(scales.read()?, [0.5; 3]);
    /// # Ok::<(), counterflow_runtime::Error>(())
    /// ```
    #[must_use]
    pub const fn with_scale_in_each_row(self) -> Recipe {
        Recipe {
            each_row: true,
            ..self
        }
    }

    /// Kernels with a tile of the matrix for each CTA.
    pub fn tiles(&self) -> String {
        let pieces = self.scaling.name().to_uppercase();
        let [turned, each_row] = [self.transposed, self.each_row].map(u32::from);
        format!(
            "// {self}\n{}#define PIECES {pieces}\n#define TURNED {turned}\n#define EACH_ROW {each_row}\n#include \"tiles.cuh\"\n",
            self.rules()
        )
    }

    /// Kernels that see lines of elements.
    pub fn lines(&self) -> String {
        let pieces = Scaling::Current(Granularity::PerTensor);
        let recipe = Recipe::new(self.rule, pieces, self.from);
        let rules = Recipe {
            scaling: self.scaling,
            ..recipe
        };
        format!("{}#include \"whole.cuh\"\n", rules.rules())
    }

    /// The rule as lines that `rule.cuh` reads: what a kernel says before it includes that, to have this recipe's scales and codes.
    /// Numbers are given by their bits, so that both compilers read the same.
    pub fn rules(&self) -> String {
        let ScaleRule { to, .. } = self.rule;
        let delayed = self.scaling == Scaling::Delayed;
        let rule = match delayed {
            true => ScaleRule::transformer_engine(to),
            false => self.rule,
        };
        let bits = |value: f32| format!("__uint_as_float({:#010x}u)", value.to_bits());
        let convention = match rule.convention {
            Convention::TransformerEngine => "TRANSFORMER_ENGINE",
            Convention::DeepGemm => "DEEP_GEMM",
        };
        let to_name = match to {
            Fp8::E4M3 => "E4M3",
            Fp8::E5M2 => "E5M2",
        };
        let lines = [
            ("FROM", self.from.name().to_uppercase()),
            ("TO", to_name.to_owned()),
            ("CONVENTION", convention.to_owned()),
            ("POWER_OF_TWO", u32::from(rule.power_of_two).to_string()),
            ("KEEPS_NAN", u32::from(rule.keeps_nan()).to_string()),
            ("EPS", bits(rule.eps)),
            ("LARGEST", bits(to.largest())),
            ("MOST", bits(self.from.largest())),
        ];
        let line = |(name, value): (&str, String)| format!("#define {name} {value}\n");
        lines.into_iter().map(line).collect()
    }
}

impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Recipe { scaling, from, .. } = self;
        write!(f, "{} {from} -> {}", scaling.name(), self.rule.to.dtype())?;
        if let Scaling::Current(_) = scaling {
            write!(f, ", {:?}", self.rule.convention)?;
            if self.rule.power_of_two {
                f.write_str(", powers of two")?;
            }
        }
        f.write_str(if self.each_row {
            ", a scale in each row"
        } else {
            ""
        })?;
        f.write_str(if self.transposed { ", transposed" } else { "" })
    }
}
