//! Checks every shape of a range of rows, class by class.
//!
//! Two shapes of one [class](Geometry::class) have one verdict, so the first shape of each class is planned and checked
//! for all. A class may appear and disappear while rows grow, so every number of rows is looked up; that takes no
//! planning.

use super::series::Series;
use crate::checked::Checked;
use crate::diag::Diagnostics;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::shape::{Geometry, Shape};
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// The verdicts on a range of rows.
///
/// ```
/// use counterflow_codegen::{machine::Machine, shape::Shape, verify};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (series, _) = example::proven();
/// let decided = verify::range(series.kernel(), &Shape::new(1, 32, 16), 1..=512, &Machine::h200(), 1 << 24);
/// assert_eq!((decided.shapes(), decided.refused().count()), (512, 0));
/// println!("{} classes, {} steps", decided.classes.len(), decided.steps());
/// assert_eq!(decided.classes.iter().map(|class| class.shapes()).sum::<u64>(), 512);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// The classes, in the order of their first shapes.
    pub classes: Vec<Class>,
    /// Findings between launches of different rows, if each of them alone is accepted.
    pub between: Option<Diagnostics>,
    /// The first number of rows that was not checked, because its class would have exceeded the limit of steps.
    pub undecided: Option<u32>,
}

/// Shapes with one verdict.
///
/// ```
/// use counterflow_codegen::verify::{Class, Decided};
///
/// fn told(decided: &Decided) {
///     for class in decided.refused() {
///         let Class { first, verdict, .. } = class;
///         println!("{} shapes as {first}: {verdict:?}", class.shapes());
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Class {
    /// The shape that was checked: the one with the fewest rows.
    pub first: Shape,
    /// The numbers of rows that are of this class, ascending.
    pub rows: Vec<RangeInclusive<u32>>,
    /// Number of steps of all its agents, or why it is rejected.
    pub verdict: Result<u64, Diagnostics>,
}

impl Class {
    /// Number of shapes of the class.
    pub fn shapes(&self) -> u64 {
        let each = |rows: &RangeInclusive<u32>| u64::from(rows.end() - rows.start()) + 1;
        self.rows.iter().map(each).sum()
    }

    fn add(&mut self, m: u32) {
        match self.rows.last_mut() {
            Some(last) if *last.end() + 1 == m => *last = *last.start()..=m,
            Some(_) | None => self.rows.push(m..=m),
        }
    }
}

impl Decided {
    /// Number of shapes that have a verdict.
    pub fn shapes(&self) -> u64 {
        self.classes.iter().map(Class::shapes).sum()
    }

    /// Number of steps of the accepted classes.
    pub fn steps(&self) -> u64 {
        let steps = |class: &Class| class.verdict.as_ref().ok().copied();
        self.classes.iter().filter_map(steps).sum()
    }

    /// The rejected classes.
    pub fn refused(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().filter(|class| class.verdict.is_err())
    }
}

/// Checks `shape` with every number of rows in `rows`, each as [`crate::verify::plan`] does, and then launches of all of
/// them in one [`crate::verify::series`]. Stops after `most` steps.
pub fn range(
    kernel: &Checked<Kernel>,
    shape: &Shape,
    rows: RangeInclusive<u32>,
    machine: &Machine,
    most: u64,
) -> Decided {
    let mut decided = Decided::default();
    let mut known: HashMap<Option<Vec<u32>>, usize> = HashMap::new();
    let mut taken = 0;
    let largest = Shape {
        m: *rows.end(),
        ..shape.clone()
    };
    for m in rows {
        let shape = Shape { m, ..shape.clone() };
        // A shape without a geometry is rejected for its sizes alone.
        let geometry = Geometry::new(kernel, &shape);
        let class = geometry.as_ref().ok().map(Geometry::class);
        if let Some(index) = known.get(&class) {
            decided.classes[*index].add(m);
            continue;
        }
        if taken > most {
            decided.undecided = Some(m);
            return decided;
        }
        let verdict = geometry
            .and_then(|_| Series::new(kernel, &shape, machine)?.plan(&shape))
            .map(|plan| {
                plan.agents
                    .iter()
                    .map(|agent| agent.steps.len() as u64)
                    .sum()
            });
        taken += verdict.as_ref().copied().unwrap_or(1);
        known.insert(class, decided.classes.len());
        decided.classes.push(Class {
            first: shape,
            rows: vec![m..=m],
            verdict,
        });
    }
    if decided.refused().next().is_none() {
        decided.between = Series::new(kernel, &largest, machine).err();
    }
    decided
}
