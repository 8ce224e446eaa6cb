//! How a layer's tensors become codes, and the codes that it keeps.

use crate::fp8::{Cast, Coded, Recipe, Role};
use crate::scratch::Lent;
use crate::userbuffers::Userbuffers;
use counterflow::op::Granularity;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Error, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a layer's tensors become codes, and those of its weight.
#[derive(Debug)]
pub(super) struct Fp8 {
    in_blocks: bool,
    input: Cast,
    weight: Cast,
    gradient: Cast,
    held: Mutex<Weight>,
}

/// The codes of a weight, which microbatches share.
#[derive(Debug)]
struct Weight {
    rows: Coded,
    /// The transposed copy.
    turned: Coded,
    /// True if there are any yet.
    is_there: bool,
}

/// What the forward pass keeps of its input.
#[derive(Debug)]
pub(super) enum Kept {
    /// This rank's rows, to be gathered again.
    Shard {
        codes: Lent<e4m3>,
        scale: Arc<Lent<f32>>,
    },
    /// All that the weight's gradient needs, with tokens along its rows.
    Turned {
        codes: Lent<e4m3>,
        scale: Arc<Lent<f32>>,
    },
    /// The same with scales of blocks.
    Pieces(Turned),
}

/// Codes with scales of blocks and tokens along their rows: a piece of each rank's rows, one behind the other.
#[derive(Debug)]
pub(super) struct Turned {
    pub codes: Lent<e4m3>,
    pub scales: Arc<Lent<f32>>,
}

impl Fp8 {
    pub fn new(
        userbuffers: &Userbuffers,
        recipe: &Recipe,
        [out, columns]: [usize; 2],
    ) -> Result<Fp8, Error> {
        let (rank, shared) = (userbuffers.rank(), userbuffers.fp8()?);
        let cast = |role| Cast::new(shared, recipe, role);
        let weight = cast(Role::Weight)?;
        let granularity = recipe.quantiser(Role::Weight).granularity();
        let coded = |shape: [usize; 2], scales: &Tensor<f32>| {
            Coded::own(weight.to(), &rank.zeros(shape)?, scales, granularity)
        };
        let scales = rank.zeros(granularity.scales([out, columns]))?;
        let of_turned = match granularity == Granularity::PerTensor {
            true => scales.clone(),
            false => rank.zeros(granularity.scales([columns, out]))?,
        };
        Ok(Fp8 {
            in_blocks: recipe.is_of_blocks(),
            held: Mutex::new(Weight {
                rows: coded([out, columns], &scales)?,
                turned: coded([columns, out], &of_turned)?,
                is_there: false,
            }),
            input: cast(Role::Input)?,
            gradient: cast(Role::Gradient)?,
            weight,
        })
    }

    pub fn is_in_blocks(&self) -> bool {
        self.in_blocks
    }

    pub fn input(&self) -> &Cast {
        &self.input
    }

    pub fn gradient(&self) -> &Cast {
        &self.gradient
    }

    /// The weight's codes: made now, or kept from the first microbatch.
    pub fn weight(&self, userbuffers: &Userbuffers, weight: &Tensor<bf16>) -> Result<Coded, Error> {
        let shared = userbuffers.fp8()?;
        let first = shared.is_first_microbatch()?;
        let mut held = self.held();
        let held = &mut *held;
        if first != Some(false) || !held.is_there {
            let to = (&mut held.rows, Some(&mut held.turned));
            self.weight
                .launch(userbuffers.rank(), shared, weight, to, false)?;
            held.is_there = true;
        }
        Ok(held.rows.clone())
    }

    /// The codes of its transposed copy, as they were made last.
    pub fn weight_on_its_side(&self) -> Coded {
        self.held().turned.clone()
    }

    fn held(&self) -> MutexGuard<'_, Weight> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
