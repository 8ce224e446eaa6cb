//! Everything that makes two compiled kernels differ.

use crate::dtype::Dtype;
use crate::encoding::rule::Rule;
pub use crate::encoding::{BLOCK, Scales};
use crate::program::Setting;
use std::collections::BTreeMap;
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
/// let scaled = Variant::new(4).dtype(Dtype::E4M3).scales(Scales::Whole); // of FP8 operands
/// assert_eq!(scaled.to_string(), "sm90 world 4 nt e4m3 scales=whole");
/// let gradients = Variant::new(4).dtype(Dtype::E5M2).second(Dtype::E4M3); // e5m2 · e4m3
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
    /// Replaces the element type of the first parameter wherever that type occurs. FP8 replaces it only in what products
    /// multiply, and in what is copied from or to that: results stay in the type that the schedule says.
    pub dtype: Option<Dtype>,
    /// The FP8 type of products' second operands, where it is not that of the first; only beside an FP8 `dtype`.
    pub second: Option<Dtype>,
    /// The scales that FP8 operands of products have; `None`: they are what their elements say.
    pub scales: Option<Scales>,
    /// Replaces the element type of those outputs (`Out`) that have the type of the first parameter. Of FP8, each result is
    /// multiplied by one number before it is rounded: a tensor of f32 beside it, called `y.scale` for the output `y`.
    pub output: Option<Dtype>,
    /// The rule by which a launch makes scales of 1×128 for those outputs, whose type is the rule's then, from what it computes: a
    /// plane of f32 `[⌈N/128⌉][M padded to 4]` that it writes, called `y.scale` for the output `y`, with what each 128 columns of
    /// a row are to be multiplied by. So a product reads scales of its first operand ([`Scales::Blocks1d2d`],
    /// [`Scales::Blocks1d1d`]). `None`: the number by which an FP8 output is multiplied is given.
    pub output_scales: Option<Rule>,
    /// The rule by which partial sums of tiles become FP8 before they travel to the rank that adds them up: scratch of whose tiles
    /// a schedule takes a sum is of the rule's type, with a plane of f32 beside each slot, called `partial.scale` for the scratch
    /// `partial`, that has a number for each 128 columns of a row. Who stores a tile makes them; who adds it multiplies, and adds
    /// in f32, in the same order as ever. `None`: the type that the schedule says.
    pub partial_sums: Option<Rule>,
    /// True if each output that has a scale, by an `output` of FP8, has its amax beside it: one f32, called `y.amax` for
    /// the output
    /// `y`. A launch makes it as large as the largest absolute value of what it computes there, taken before the scale and before
    /// anything is rounded to FP8. Where that is NaN, so is the amax. What it held before counts, unless its sign bit is set: then
    /// it is less than any absolute value, even if it is NaN.
    pub amax: bool,
    /// True if sums of FP8 products are promoted: every [`BLOCK`] of K, what the tensor cores summed is added in f32 to sums of
    /// the threads' own. Tensor cores alone keep 13 fraction bits of a sum.
    pub promote: bool,
    /// The layout of dots' operands.
    pub layout: Layout,
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
            dtype: None,
            second: None,
            scales: None,
            output: None,
            output_scales: None,
            partial_sums: None,
            amax: false,
            promote: false,
            layout: Layout::Nt,
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

    /// With other element types.
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// With another FP8 type for the second operands of products.
    #[must_use]
    pub fn second(mut self, dtype: Dtype) -> Self {
        self.second = Some(dtype);
        self
    }

    /// With scales of FP8 operands.
    #[must_use]
    pub fn scales(mut self, scales: Scales) -> Self {
        self.scales = Some(scales);
        self
    }

    /// With another type of outputs.
    #[must_use]
    pub fn output(mut self, dtype: Dtype) -> Self {
        self.output = Some(dtype);
        self
    }

    /// With outputs of FP8 that have scales of 1×128, which a launch makes by that rule.
    ///
    /// ```
    /// use counterflow_codegen::rule::{Fp8, Rule};
    /// use counterflow_codegen::{dtype::Dtype, variant::Variant};
    ///
    /// let rule = Rule::transformer_engine(Fp8::E4M3).powers_of_two();
    /// let variant = Variant::new(1).output_scales(rule);
    /// assert_eq!(variant.output, Some(Dtype::E4M3));
    /// assert_eq!(variant.to_string(), "sm90 world 1 nt output=e4m3 output-scales=te+pow2");
    /// ```
    #[must_use]
    pub fn output_scales(mut self, rule: Rule) -> Self {
        self.output = Some(rule.to.dtype());
        self.output_scales = Some(rule);
        self
    }

    /// With partial sums that travel in FP8, with scales of 1×128 by that rule.
    ///
    /// ```
    /// use counterflow_codegen::{rule::{Fp8, Rule}, variant::Variant};
    ///
    /// let rule = Rule::transformer_engine(Fp8::E4M3).powers_of_two();
    /// let variant = Variant::new(2).partial_sums(rule);
    /// assert_eq!(variant.to_string(), "sm90 world 2 nt partial-sums=e4m3 by te+pow2");
    /// ```
    #[must_use]
    pub fn partial_sums(mut self, rule: Rule) -> Self {
        self.partial_sums = Some(rule);
        self
    }

    /// With amaxes of outputs that have a scale.
    ///
    /// ```
    /// use counterflow_codegen::{dtype::Dtype, variant::Variant};
    ///
    /// let variant = Variant::new(1).output(Dtype::E4M3).amax(true);
    /// assert_eq!(variant.to_string(), "sm90 world 1 nt output=e4m3 amax");
    /// ```
    #[must_use]
    pub fn amax(mut self, amax: bool) -> Self {
        self.amax = amax;
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
        self.promote || self.scales.is_some_and(|scales| scales.blocks().is_some())
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
        if let Some(dtype) = self.dtype {
            write!(f, " {dtype}")?;
        }
        if let Some(second) = self.second {
            write!(f, "×{second}")?;
        }
        if let Some(scales) = self.scales {
            write!(f, " scales={}", scales.name())?;
        }
        if let Some(output) = self.output {
            write!(f, " output={output}")?;
        }
        if let Some(rule) = self.output_scales {
            write!(f, " output-scales={rule}")?;
        }
        if let Some(rule) = self.partial_sums {
            write!(f, " partial-sums={} by {rule}", rule.to.dtype())?;
        }
        if self.amax {
            f.write_str(" amax")?;
        }
        if self.promote {
            f.write_str(" promote")?;
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
