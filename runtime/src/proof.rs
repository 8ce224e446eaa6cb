//! From a schedule to what is loaded: choices, proofs and warps, made once for all ranks of a process.

use crate::error::Error;
use crate::tuned::{self, Tuned};
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::model::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_codegen::{lower::lower, plan::Plan};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What the ranks of a process built. The first rank makes a proof, the others take it: all have the same choices.
#[derive(Debug, Default)]
pub(crate) struct Proven(Mutex<HashMap<String, Arc<Proof>>>);

/// A schedule with its choices made, and what is proven about it.
#[derive(Debug)]
pub(crate) struct Proof {
    pub variant: Variant,
    /// The largest launch, as it was asked for.
    pub shape: Shape,
    pub series: Series,
    pub largest: Checked<Plan>,
    pub pipeline: Checked<Pipeline>,
}

/// What a proof is of.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    pub program: &'a Program,
    /// Choices that are made already, types, layout and world.
    pub variant: Variant,
    /// The largest launch.
    pub shape: Shape,
    /// The GPU's name.
    pub gpu: &'a str,
    /// The part of the GPU that a rank has.
    pub sms: u32,
    /// Whether open choices are settled as written first.
    pub first_options: bool,
    /// Which bits results may have.
    pub bits: Bits,
}

/// Which bits the rows of results may have.
#[derive(Clone, Debug)]
pub(crate) enum Bits {
    /// Any.
    Any,
    /// The same ones for every number of rows.
    Invariant,
    /// Those of a class.
    Of(BitsClass),
}

impl Bits {
    /// Refuses a kernel whose rows have other bits.
    fn admits(&self, kernel: &Checked<Kernel>) -> Result<(), Error> {
        match self {
            Bits::Any => Ok(()),
            Bits::Invariant => Ok(BitsClass::of(kernel).map(drop)?),
            Bits::Of(class) => match BitsClass::of(kernel)? {
                own if own == *class => Ok(()),
                own => Err(Error::Usage {
                    what: format!("{} with {own}, beside launches with {class}", kernel.name),
                    legal: "variants of one class of bits".into(),
                }),
            },
        }
    }
}

impl Proven {
    /// The proof of that, made now if no rank made it before.
    ///
    /// # Errors
    /// Why every choice is rejected.
    pub(crate) fn of(&self, asked: &Asked<'_>) -> Result<Arc<Proof>, Error> {
        // All of it: two schedules of one name are two.
        let key = format!("{asked:?}");
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(proof) = known.get(&key) {
            return Ok(proof.clone());
        }
        let proof = Arc::new(Proof::of(asked)?);
        known.insert(key, proof.clone());
        Ok(proof)
    }
}

impl Proof {
    fn of(asked: &Asked<'_>) -> Result<Proof, Error> {
        let Asked {
            program,
            variant,
            shape,
            gpu,
            sms,
            first_options,
            bits,
        } = asked;
        let machine = Machine {
            sms: *sms,
            ..Machine::h200()
        };
        let variant = if *first_options {
            variant.clone()
        } else {
            let tables = [Tuned::of_user()?, Tuned::embedded()?];
            let admits = |kernel: &Checked<Kernel>| bits.admits(kernel);
            let at = (shape, &machine);
            tuned::select_of(&tables, gpu, program, variant, at, &admits)?.variant
        };
        let kernel = verify::kernel(lower(program, &variant)?)?;
        bits.admits(&kernel)?;
        let series = verify::series(&kernel, shape, &machine)?;
        let largest = series.plan(series.most())?;
        Ok(Proof {
            variant,
            shape: shape.clone(),
            largest,
            pipeline: verify::warps(&kernel)?,
            series,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::product;

    #[test]
    fn ranks_share_a_proof_and_schedules_of_one_name_do_not() {
        let proven = Proven::default();
        let (first, second) = (product((128, 128)), product((64, 64)));
        let of = |program, m| {
            let asked = Asked {
                program,
                variant: Variant::new(1),
                shape: Shape::new(m, 256, 128),
                gpu: "a GPU",
                sms: 132,
                first_options: false,
                bits: Bits::Any,
            };
            proven.of(&asked).expect("a proof")
        };
        assert!(Arc::ptr_eq(&of(&first, 512), &of(&first, 512)));
        assert!(!Arc::ptr_eq(&of(&first, 512), &of(&first, 256)));
        assert!(!Arc::ptr_eq(&of(&first, 512), &of(&second, 512)));
    }
}
