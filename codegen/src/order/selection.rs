//! Selection of the items of a shard that a loop visits: all, or some by their place in its order.

use super::Int;
use crate::rank::{RankError, RankExpr, Var};

/// One step of a selection, on what the steps before it left.
///
/// [`Selection`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub enum Cut {
    /// Without the first so many, or none if there are fewer.
    Skip(RankExpr),
    /// The first so many, or all if there are fewer.
    Take(RankExpr),
    /// The first of every so many: 1 to [`MOST_STEP`].
    StepBy(RankExpr),
    /// The first half: of an odd number, the larger.
    FirstHalf,
    /// The items that [`Cut::FirstHalf`] leaves.
    SecondHalf,
}

/// The largest step of [`Cut::StepBy`].
pub const MOST_STEP: u32 = 1 << 16;

impl Cut {
    /// Word in the language.
    pub const fn word(&self) -> &'static str {
        match self {
            Cut::Skip(_) => "skip",
            Cut::Take(_) => "take",
            Cut::StepBy(_) => "step_by",
            Cut::FirstHalf => "first_half",
            Cut::SecondHalf => "second_half",
        }
    }

    /// Number of the step, if it has one.
    pub const fn number(&self) -> Option<&RankExpr> {
        match self {
            Cut::Skip(n) | Cut::Take(n) | Cut::StepBy(n) => Some(n),
            Cut::FirstHalf | Cut::SecondHalf => None,
        }
    }

    /// The value of its number `n`, if it is in range.
    fn checked(&self, n: i64) -> Result<u32, RankError> {
        match (self, n) {
            (_, ..0) => Err(RankError::Negative),
            (Cut::StepBy(_), n) if n == 0 || n > i64::from(MOST_STEP) => Err(RankError::Step),
            (_, n) => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
        }
    }

    /// `skip(1)`, with loop variables under the names `name` gives them.
    pub fn text(&self, name: &impl Fn(Var) -> String) -> String {
        let number = self.number().map(|n| n.text(name)).unwrap_or_default();
        format!("{}({number})", self.word())
    }
}

/// Items of a shard that a loop visits: those that its cuts leave, one cut after another, in the loop's order.
///
/// ```
/// use counterflow_codegen::order::{Chosen, Cut, Selection};
///
/// let odd = Selection::new(vec![Cut::Skip(1.into()), Cut::StepBy(2.into())]);
/// let of_seven: Chosen<u32> = odd.of(7, 0, 1, &|_| None).unwrap(); // on rank 0 of 1
/// assert_eq!((0..of_seven.count).map(|nth| of_seven.at(nth)).collect::<Vec<_>>(), [1, 3, 5]);
/// assert_eq!(odd.least_and_most(7, 4), (3, 3));
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Selection(Vec<Cut>);

/// Some of a row of items.
///
/// [`Selection`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen<I> {
    /// The place of the first.
    pub first: I,
    /// From the place of one to that of the next.
    pub step: I,
    /// Number of items.
    pub count: I,
}

impl Selection {
    /// Selects the items that all of these cuts leave; without cuts, every item.
    pub const fn new(cuts: Vec<Cut>) -> Selection {
        Selection(cuts)
    }

    /// Steps of the selection.
    pub fn cuts(&self) -> &[Cut] {
        &self.0
    }

    /// True if it leaves all.
    pub const fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// True if each item is visited in every launch that has it, or in none. `divided` says that items have columns: then
    /// their places depend on how many there are.
    pub fn is_fixed(&self, divided: bool) -> bool {
        let is_half = |cut: &Cut| matches!(cut, Cut::FirstHalf | Cut::SecondHalf);
        self.is_all() || !divided && !self.0.iter().any(is_half)
    }

    /// The items left of `count`, on rank `me` of `world`. `var` gives the values of loop variables.
    ///
    /// # Errors
    /// The step whose number has no value or is out of range, and why.
    pub fn of(
        &self,
        count: u32,
        me: u32,
        world: u32,
        var: &impl Fn(Var) -> Option<i64>,
    ) -> Result<Chosen<u32>, (&Cut, RankError)> {
        self.left(count, |cut, n| {
            let value = n.eval(me, world, var).and_then(|n| cut.checked(n));
            value.map_err(|error| (cut, error))
        })
    }

    /// The fewest and the most of `count` items that it leaves on any rank: none and all where loop variables decide.
    pub fn least_and_most(&self, count: u32, world: u32) -> (u32, u32) {
        let left = (0..world).map(|me| self.of(count, me, world, &|_| None));
        let counts = left.map(|some| some.map_or((0, count), |some| (some.count, some.count)));
        let both = |a: (u32, u32), b: (u32, u32)| (Ord::min(a.0, b.0), Ord::max(a.1, b.1));
        counts.reduce(both).unwrap_or_default()
    }

    /// Items that it leaves of `count`. `value` gives the numbers of its steps.
    pub(crate) fn left<'a, I: Int, E>(
        &'a self,
        count: I,
        mut value: impl FnMut(&'a Cut, &'a RankExpr) -> Result<I, E>,
    ) -> Result<Chosen<I>, E> {
        let all = Chosen::all(count);
        let half = |count: I| (count + I::constant(1)) / I::constant(2);
        self.0.iter().try_fold(all, |left, cut| {
            Ok(match cut {
                Cut::Skip(n) => left.without(value(cut, n)?),
                Cut::Take(n) => Chosen {
                    count: left.count.min(value(cut, n)?),
                    ..left
                },
                Cut::StepBy(n) => {
                    let n = value(cut, n)?;
                    Chosen {
                        count: (left.count + n.clone() - I::constant(1)) / n.clone(),
                        step: left.step * n,
                        ..left
                    }
                }
                Cut::FirstHalf => Chosen {
                    count: half(left.count),
                    ..left
                },
                Cut::SecondHalf => {
                    let half = half(left.count.clone());
                    left.without(half)
                }
            })
        })
    }

    /// `.skip(1).step_by(2)`, with loop variables under the names `name` gives them.
    pub fn text(&self, name: &impl Fn(Var) -> String) -> String {
        let cuts = self.0.iter();
        cuts.map(|cut| format!(".{}", cut.text(name))).collect()
    }
}

impl<I: Int> Chosen<I> {
    /// All of `count`.
    pub fn all(count: I) -> Chosen<I> {
        Chosen {
            first: I::constant(0),
            step: I::constant(1),
            count,
        }
    }

    /// The place of the `nth` of them, counted from 0, below [`Chosen::count`].
    pub fn at(&self, nth: I) -> I {
        self.first.clone() + self.step.clone() * nth
    }

    /// Without the first `n` of these, or none if there are fewer.
    fn without(self, n: I) -> Chosen<I> {
        let n = n.min(self.count.clone());
        Chosen {
            first: self.first + self.step.clone() * n.clone(),
            count: self.count - n,
            step: self.step,
        }
    }
}
