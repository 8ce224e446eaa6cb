//! Everything that makes two compiled kernels differ.

use crate::dtype::Dtype;
use crate::encoding::rule::ScaleRule;
use crate::encoding::{Along, Scaling};
pub use crate::encoding::{Asked, Encodings, PROMOTION_INTERVAL, Scales, Tensors};
use crate::program::Setting;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The decisions the author left open, plus the architecture, types, world size and layout.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_codegen::variant::{Arch, Layout, Scales, Variant};
///
/// let variant = Variant::new(4).layout(Layout::Nn).dtype(Dtype::F16).set("tiles", (128, 256));
/// assert_eq!(variant.to_string(), "sm90 world 4 nn f16 tiles=128x256");
/// let emulated = variant.arch(Arch::Cpu); // tiles of any shape, without a kernel for GPUs
/// assert_eq!(emulated.choices.len(), 1);
/// let scaled = Variant::new(4).dtype(Dtype::E4M3).scales(Scales::PerTensor); // of FP8 operands
/// assert_eq!(scaled.to_string(), "sm90 world 4 nt e4m3 scales=whole");
/// let gradients = Variant::new(4).dtype(Dtype::E5M2).rhs_dtype(Dtype::E4M3); // e5m2 · e4m3
/// assert_eq!(gradients.to_string(), "sm90 world 4 nt e5m2×e4m3");
/// let narrow = Variant::new(4).dtype(Dtype::E4M3).output(Dtype::E4M3); // results are quantised
/// assert_eq!(narrow.to_string(), "sm90 world 4 nt e4m3 output=e4m3");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Variant {
    /// The architecture the kernel is for.
    pub arch: Arch,
    /// Number of ranks.
    pub world: u32,
    /// The encodings of tensors, where they are not what the schedule says.
    pub encodings: Encodings,
    /// True if sums of FP8 products are promoted: every [`PROMOTION_INTERVAL`] of K, what the tensor cores summed is added
    /// in f32 to sums of the threads' own. Tensor cores alone keep 13 fraction bits of a sum.
    pub promote: bool,
    /// The layout of dots' operands.
    pub layout: Layout,
    /// Tensors that nobody writes while launches are under way, by name ([`Variant::constant`]).
    pub constants: BTreeSet<String>,
    /// Choices by name. An absent one has its first option.
    pub choices: BTreeMap<String, Setting>,
}

/// A GPU architecture.
///
/// ```
/// use counterflow_codegen::variant::Arch;
///
/// assert_eq!((Arch::Sm90.name(), Arch::Sm90.shared_memory()), ("sm90", 227 << 10));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Arch {
    /// Hopper: H100, H200.
    #[default]
    Sm90,
    /// The emulator alone: tiles of any shape.
    Cpu,
}

impl Arch {
    /// Shared memory one CTA may have, in bytes (CUDA C++ Programming Guide, "Technical Specifications": 227 KiB).
    pub const fn shared_memory(self) -> u32 {
        match self {
            Arch::Sm90 => 232_448,
            Arch::Cpu => u32::MAX,
        }
    }

    /// Name of the architecture.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm90 => "sm90",
            Arch::Cpu => "cpu",
        }
    }
}

/// Memory layout of the operands of `dot(a, b)`: N = K is contiguous, T = rows are contiguous, named as BLAS does
/// for column-major memory.
///
/// ```
/// use counterflow_codegen::variant::Layout;
///
/// assert_eq!(Layout::from_name("nn"), Some(Layout::Nn));
/// assert_eq!(Layout::ALL.map(Layout::name), ["nt", "nn", "tn"]);
/// assert_eq!(Layout::Tn.mn_major(), [true, true]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Layout {
    /// `a` is [M, K], `b` is [N, K]: forward, y = x · wᵀ.
    #[default]
    Nt,
    /// `a` is [M, K], `b` is [K, N]: dgrad.
    Nn,
    /// `a` is [K, M], `b` is [K, N]: wgrad.
    Tn,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 3] = [Layout::Nt, Layout::Nn, Layout::Tn];

    /// For `a` and for `b`: true if rows are contiguous, false if K is.
    pub const fn mn_major(self) -> [bool; 2] {
        match self {
            Layout::Nt => [false, false],
            Layout::Nn => [false, true],
            Layout::Tn => [true, true],
        }
    }

    /// Name of the layout.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Nt => "nt",
            Layout::Nn => "nn",
            Layout::Tn => "tn",
        }
    }

    /// The layout of that name.
    pub fn from_name(name: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.name() == name)
    }
}

impl Variant {
    /// The defaults for `world` ranks: Hopper, types and choices as written.
    pub fn new(world: u32) -> Self {
        Variant {
            arch: Arch::Sm90,
            world,
            encodings: Encodings::default(),
            promote: false,
            layout: Layout::Nt,
            constants: BTreeSet::new(),
            choices: BTreeMap::new(),
        }
    }

    /// With a choice settled.
    #[must_use]
    pub fn set(mut self, name: &str, setting: impl Into<Setting>) -> Self {
        self.choices.insert(name.into(), setting.into());
        self
    }

    /// For another architecture.
    #[must_use]
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = arch;
        self
    }

    /// With that encoding of these tensors, in place of what was asked for them.
    ///
    /// ```
    /// use counterflow_codegen::dtype::Dtype;
    /// use counterflow_codegen::variant::{Asked, Scales, Tensors, Variant};
    ///
    /// let variant = Variant::new(2).dtype(Dtype::E4M3).scales(Scales::PerRow).hidden("hidden", Dtype::E4M3);
    /// let layer = Tensors::Hidden("hidden".into());
    /// let wider = Asked { element: Some(Dtype::E5M2), ..variant.asked(&layer) };
    /// let variant = variant.encode(layer, wider);
    /// assert_eq!(variant.to_string(), "sm90 world 2 nt e4m3 scales=rows hidden:e5m2");
    /// assert_eq!(variant.operand_scales(), Some(Scales::PerRow));
    /// assert!(variant.output_rule().is_none() && variant.partial_rule().is_none());
    /// ```
    #[must_use]
    pub fn encode(mut self, tensors: Tensors, asked: Asked) -> Self {
        self.encodings.put(tensors, asked);
        self
    }

    /// The encoding that is asked for these tensors.
    pub fn asked(&self, tensors: &Tensors) -> Asked {
        self.encodings.of(tensors)
    }

    /// With another element type of the first parameter, wherever that occurs. FP8 replaces it only in what products multiply, and
    /// in what is copied from or to that: results stay in the type that the schedule says.
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.encodings
            .change(Tensors::OfFirstType, |asked| asked.element = Some(dtype));
        self
    }

    /// With another FP8 type for the second operands of products than for the first; only beside an FP8 type of these.
    #[must_use]
    pub fn rhs_dtype(mut self, dtype: Dtype) -> Self {
        self.encodings
            .change(Tensors::Rhs, |asked| asked.element = Some(dtype));
        self
    }

    /// With scales of FP8 operands. Without: they are what their elements say.
    #[must_use]
    pub fn scales(mut self, scales: Scales) -> Self {
        let operands = [Tensors::Lhs, Tensors::Rhs];
        for (operand, tensors) in operands.into_iter().enumerate() {
            let scale = Some(Scaling::Given(scales.along(operand)));
            self.encodings.change(tensors, |asked| asked.scale = scale);
        }
        self
    }

    /// The kind of scales that operands have.
    pub fn operand_scales(&self) -> Option<Scales> {
        self.encodings.scales()
    }

    /// With another type of those outputs (`Out`) that have the type of the first parameter. Of FP8, each result is multiplied by
    /// one given number before it is rounded.
    #[must_use]
    pub fn output(mut self, dtype: Dtype) -> Self {
        self.encodings
            .change(Tensors::Outputs, |asked| asked.element = Some(dtype));
        self
    }

    /// With outputs of FP8 that have scales of 1×128, which a launch makes by that rule of what it computes: for each 128 columns of
    /// a row what they are to be multiplied by, as a product reads scales of its first operand ([`Scales::Blocks1d2d`],
    /// [`Scales::Blocks1d1d`]).
    ///
    /// ```
    /// use counterflow_codegen::rule::{Fp8, ScaleRule};
    /// use counterflow_codegen::variant::{Tensors, Variant};
    /// use counterflow_codegen::dtype::Dtype;
    ///
    /// let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    /// let variant = Variant::new(1).output_scales(rule);
    /// assert_eq!(variant.asked(&Tensors::Outputs).element, Some(Dtype::E4M3));
    /// assert_eq!(variant.to_string(), "sm90 world 1 nt output=e4m3 output-scales=te+pow2");
    /// ```
    #[must_use]
    pub fn output_scales(mut self, rule: ScaleRule) -> Self {
        self.encodings.change(Tensors::Outputs, |asked| {
            asked.element = Some(rule.to.dtype());
            asked.scale = Some(Scaling::Computed(rule));
        });
        self
    }

    /// With partial sums of tiles that travel in FP8 to the rank that adds them up, with scales of 1×128 by that rule. Who stores a
    /// tile makes them; who adds it multiplies, and adds in f32, in the same order as ever.
    ///
    /// ```
    /// use counterflow_codegen::{rule::{Fp8, ScaleRule}, variant::Variant};
    ///
    /// let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    /// let variant = Variant::new(2).quantised_reduction(rule);
    /// assert_eq!(variant.to_string(), "sm90 world 2 nt partial-sums=e4m3 by te+pow2");
    /// ```
    #[must_use]
    pub fn quantised_reduction(mut self, rule: ScaleRule) -> Self {
        self.encodings.change(Tensors::PartialSums, |asked| {
            asked.element = Some(rule.to.dtype());
            asked.scale = Some(Scaling::Computed(rule));
        });
        self
    }

    /// The rule by which launches make scales of outputs, if they do.
    pub fn output_rule(&self) -> Option<ScaleRule> {
        self.asked(&Tensors::Outputs).scale.and_then(Scaling::rule)
    }

    /// The rule by which partial sums travel in FP8, if they do.
    pub fn partial_rule(&self) -> Option<ScaleRule> {
        self.asked(&Tensors::PartialSums)
            .scale
            .and_then(Scaling::rule)
    }

    /// With a hidden layer in FP8: scratch of that name which products multiply. A launch is given one number, by which it multiplies
    /// what it stores there before it is rounded, and by which it divides products of it. What products multiply it by is FP8, too.
    ///
    /// ```
    /// use counterflow_codegen::dtype::Dtype;
    /// use counterflow_codegen::variant::{Scales, Variant};
    ///
    /// let variant = Variant::new(2).dtype(Dtype::E4M3).scales(Scales::PerRow).hidden("hidden", Dtype::E4M3);
    /// assert_eq!(variant.to_string(), "sm90 world 2 nt e4m3 scales=rows hidden:e4m3");
    /// ```
    #[must_use]
    pub fn hidden(self, name: &str, dtype: Dtype) -> Self {
        let asked = Asked {
            element: Some(dtype),
            scale: Some(Scaling::Given(Along::All)),
            amax: false,
        };
        self.encode(Tensors::Hidden(name.into()), asked)
    }

    /// With amaxes of outputs that have a scale: one number each, as large as the largest absolute value of what a launch computes
    /// there, taken before the scale and before anything is rounded to FP8. Where that is NaN, so is the amax. What it held before
    /// counts, unless its sign bit is set: then it is less than any absolute value, even if it is NaN.
    ///
    /// ```
    /// use counterflow_codegen::{dtype::Dtype, variant::Variant};
    ///
    /// let variant = Variant::new(1).output(Dtype::E4M3).amax(true);
    /// assert_eq!(variant.to_string(), "sm90 world 1 nt output=e4m3 amax");
    /// ```
    #[must_use]
    pub fn amax(mut self, amax: bool) -> Self {
        self.encodings
            .change(Tensors::Outputs, |asked| asked.amax = amax);
        self
    }

    /// With promoted sums of FP8 products.
    ///
    /// ```
    /// use counterflow_codegen::{dtype::Dtype, variant::Variant};
    ///
    /// let variant = Variant::new(1).dtype(Dtype::E4M3).promote(true);
    /// assert_eq!(variant.to_string(), "sm90 world 1 nt e4m3 promote");
    /// assert!(variant.promotes());
    /// ```
    #[must_use]
    pub fn promote(mut self, promote: bool) -> Self {
        self.promote = promote;
        self
    }

    /// True if sums of FP8 products are promoted to f32: if asked for, and always with scales of blocks of K.
    pub fn promotes(&self) -> bool {
        self.promotion_interval().is_some()
    }

    /// Elements of K whose sum is promoted at once, if sums are promoted: the columns of a scale's block, or else
    /// [`PROMOTION_INTERVAL`].
    #[doc(hidden)]
    pub fn promotion_interval(&self) -> Option<u32> {
        let columns = self.encodings.operand_blocks().map(|block| block.columns);
        let asked = self.promote.then_some(PROMOTION_INTERVAL);
        columns.min().or(asked)
    }

    /// With an input that nobody writes while launches of the kernel, or those before them on the stream, are under way: weights.
    /// A kernel without communication loads it into its stages before the launches ahead of it have ended, wherever it is an
    /// operand of a product. All else waits for their end.
    ///
    /// ```
    /// use counterflow_codegen::variant::Variant;
    ///
    /// assert_eq!(Variant::new(1).constant("w").to_string(), "sm90 world 1 nt constant=w");
    /// ```
    #[must_use]
    pub fn constant(mut self, name: &str) -> Self {
        self.constants.insert(name.into());
        self
    }

    /// With another operand layout.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} world {} {}",
            self.arch.name(),
            self.world,
            self.layout.name()
        )?;
        write!(f, "{}", self.encodings)?;
        if self.promote {
            f.write_str(" promote")?;
        }
        for name in &self.constants {
            write!(f, " constant={name}")?;
        }
        for (name, setting) in &self.choices {
            write!(f, " {name}={setting}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::One(value) => write!(f, "{value}"),
            Setting::Pair(a, b) => write!(f, "{a}x{b}"),
        }
    }
}

impl Setting {
    /// `256`, `128x256`, or `true` for 1 and `false` for 0.
    pub fn parse(text: &str) -> Option<Setting> {
        if let Ok(flag) = text.parse::<bool>() {
            return Some(flag.into());
        }
        match text.split_once('x') {
            Some((a, b)) => Some(Setting::Pair(a.parse().ok()?, b.parse().ok()?)),
            None => Some(Setting::One(text.parse().ok()?)),
        }
    }
}
