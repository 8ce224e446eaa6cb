//! Delayed scaling: the scale of a tensor from the amaxes of earlier calls.

use counterflow_codegen::rule::{Fp8, Scale};

/// The amax that counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pick {
    /// The largest of all.
    Max,
    /// The latest.
    MostRecent,
}

/// ScaleRule of delayed scaling, from one call to the next.
///
/// ```
/// use counterflow_quantise::{Delayed, Fp8, Pick};
///
/// let recipe = Delayed::transformer_engine(Fp8::E4M3);
/// assert_eq!((recipe.length, recipe.pick, recipe.margin), (1024, Pick::Max, 0));
/// assert_eq!(recipe.target(), 448.0);
/// assert_eq!(Delayed { margin: 2, ..recipe }.target(), 112.0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delayed {
    /// The type of the codes.
    pub to: Fp8,
    /// Number of amaxes that are remembered.
    pub length: usize,
    /// The one that counts.
    pub pick: Pick,
    /// Powers of two that are left above the amax.
    pub margin: i32,
    /// True if an amax of 0 leaves everything as it is. Else it is remembered, too.
    pub skips_zero: bool,
}

impl Delayed {
    /// TransformerEngine's, with its defaults.
    pub const fn transformer_engine(to: Fp8) -> Delayed {
        Delayed {
            to,
            length: 1024,
            pick: Pick::Max,
            margin: 0,
            skips_zero: true,
        }
    }

    /// Number that the amax becomes.
    pub fn target(&self) -> f32 {
        self.to.largest() * 2f32.powi(-self.margin)
    }
}

/// The amaxes of earlier calls, and the scale of the next one.
///
/// ```
/// use counterflow_quantise::{Delayed, Fp8, History};
///
/// let mut history = History::new(Delayed { length: 3, ..Delayed::transformer_engine(Fp8::E4M3) });
/// assert_eq!(history.scale().multiplier, 1.0);
/// history.saw(7.0);
/// history.saw(2.0); // of the same step: the larger one counts
/// history.update();
/// assert_eq!((history.scale().multiplier, history.amaxes()), (64.0, &[0.0, 0.0, 7.0][..]));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct History {
    recipe: Delayed,
    /// The first is that of the current step, the last the one before, those between are older the earlier they stand.
    amaxes: Vec<f32>,
    scale: Scale,
}

impl History {
    /// Of nothing yet: the scale is 1.
    ///
    /// # Panics
    /// If the recipe remembers nothing.
    pub fn new(recipe: Delayed) -> History {
        assert!(recipe.length > 0, "a history of no amaxes");
        History {
            recipe,
            amaxes: vec![0.0; recipe.length],
            scale: Scale {
                multiplier: 1.0,
                stored: 1.0,
            },
        }
    }

    /// From what a GPU holds: the scale, the amax of the current step, and those before it.
    pub(crate) fn held(recipe: Delayed, scale: Scale, amax: f32, before: &[f32]) -> History {
        History {
            recipe,
            amaxes: [&[amax], before].concat(),
            scale,
        }
    }

    /// The scale by which the current step quantises.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// Remembered amaxes: first the current step, last the one before it.
    pub fn amaxes(&self) -> &[f32] {
        &self.amaxes
    }

    /// Adds an amax to the current step. NaN is not seen.
    pub fn saw(&mut self, amax: f32) {
        self.amaxes[0] = self.amaxes[0].max(amax);
    }

    /// Ends the step: the scale of the next one. An amax that is 0 or not finite keeps the scale.
    pub fn update(&mut self) {
        let latest = self.amaxes[0];
        if latest == 0.0 && self.recipe.skips_zero {
            return;
        }
        let largest = self.amaxes.iter().copied().fold(0.0, f32::max);
        self.amaxes.rotate_left(1);
        // The oldest comes to the front, where the next step begins.
        self.amaxes[0] = 0.0;
        let amax = match self.recipe.pick {
            Pick::Max => largest,
            Pick::MostRecent => latest,
        };
        if amax > 0.0 && amax.is_finite() {
            let exact = self.recipe.target() / amax;
            let multiplier = exact.min(f32::MAX);
            self.scale = Scale {
                multiplier,
                stored: 1.0 / multiplier,
            };
        }
    }
}
