//! Program × Variant → Kernel: settles choices, matches dimensions, places statements and infers credits. [`Written`] is the program
//! before its choices are settled.
//!
//! It reports all mistakes of a program together, each at its statement.

mod body;
mod choices;
mod credits;
mod dims;
mod functions;
mod mistake;
mod placer;
mod places;
mod slabs;
mod written;

use crate::diag::Diagnostics;
use crate::kernel::{Counter, Kernel, Purpose};
use crate::program::{Program, Setting};
use crate::variant::Variant;
use mistake::mistake;
use placer::Comm;
use std::collections::BTreeMap;

pub use written::Written;

/// The kernel of `program` with the decisions of `variant`.
///
/// # Errors
/// Everything in the program that has no meaning in its place ([`Rule::Language`](crate::diag::Rule::Language)), and every
/// illegal choice, world size or type ([`Rule::Shape`](crate::diag::Rule::Shape)).
pub fn lower(program: &Program, variant: &Variant) -> Result<Kernel, Diagnostics> {
    Written::new(program, variant)?.lower_with(variant, Comm::Joined)
}

/// As [`lower`], but each `#[comm]` loop is a role with CTAs of its own. For predictions: nothing emits such a kernel.
///
/// ```
/// use counterflow_codegen::{lower, variant::Variant};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
///
/// let (program, variant) = (example::ag_gemm(), Variant::new(2));
/// let (joined, apart) = (lower::lower(&program, &variant)?, lower::apart(&program, &variant)?);
/// assert_eq!(joined.text(), apart.text()); // its role has one loop
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
///
/// # Errors
/// As [`lower`].
pub fn apart(program: &Program, variant: &Variant) -> Result<Kernel, Diagnostics> {
    Written::new(program, variant)?.lower_with(variant, Comm::Apart)
}

impl Written {
    /// The kernel with these choices. An absent one has its first option.
    ///
    /// # Errors
    /// As [`lower`].
    pub fn lower(&self, choices: &BTreeMap<String, Setting>) -> Result<Kernel, Diagnostics> {
        let variant = Variant {
            choices: choices.clone(),
            ..self.base.clone()
        };
        self.lower_with(&variant, Comm::Joined)
    }

    fn lower_with(&self, variant: &Variant, comm: Comm) -> Result<Kernel, Diagnostics> {
        let (program, mut found) = (&*self.program, Vec::new());
        let choices = choices::settle(program, variant, &mut found);
        let matched = dims::match_dims(program, variant, &choices, &mut found);
        // Bodies refer to tensors and partitions, so those must be valid first.
        Diagnostics::check(std::mem::take(&mut found), ())?;

        let placed = body::place(
            program,
            (variant.world, comm),
            &choices,
            &matched,
            &mut found,
        );
        if placed.locs.len() > MOST_STATEMENTS {
            let message = format!("{} has {} statements", program.name, placed.locs.len());
            found.push(mistake(program.at, message).hint(format!("at most {MOST_STATEMENTS}")));
        }
        Diagnostics::check(found, ())?;

        let counters = program
            .counters
            .iter()
            .map(|set| Counter {
                name: set.name.clone(),
                dims: set.dims.clone(),
                purpose: Purpose::Data,
                at: set.at,
            })
            .collect();
        let accs = program.accs.iter().enumerate();
        let kernel = Kernel {
            program: self.program.clone(),
            name: program.name.clone(),
            variant: variant.clone(),
            dims: matched.dims,
            buffers: matched.buffers,
            partitions: matched.partitions,
            counters,
            roles: placed.roles,
            vars: program.vars.iter().map(|var| var.name.clone()).collect(),
            accs: accs
                .map(|(index, acc)| acc.name.clone().unwrap_or_else(|| format!("acc{index}")))
                .collect(),
            values: placed.values,
            locs: placed.locs,
        };
        Ok(credits::infer(kernel))
    }
}

/// The most entries of a table. Ids have 16 bits, and inferred credits take some of them.
const MOST_STATEMENTS: usize = 8192;
