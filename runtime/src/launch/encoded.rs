//! Tensor maps from launch to launch.

use crate::cuda::{MapSpec, TensorMap};
use crate::driver::Address;
use crate::error::Error;

/// The tensor maps of the launch before, by the places of a kernel's parameters. Most launches have the same again, and
/// to encode one takes the driver longer than all that is done here.
#[derive(Debug, Default)]
pub(super) struct Maps(Vec<Option<(MapSpec, Address, TensorMap)>>);

impl Maps {
    /// The map of a tensor at that address.
    pub fn encoded(
        &mut self,
        place: usize,
        spec: MapSpec,
        start: Address,
    ) -> Result<&TensorMap, Error> {
        if self.0.len() <= place {
            self.0.resize(place + 1, None);
        }
        let known = &mut self.0[place];
        let same = known
            .as_ref()
            .is_some_and(|(of, at, _)| (*of, *at) == (spec, start));
        if !same {
            *known = None;
        }
        let (.., map) = match known {
            Some(known) => known,
            None => known.insert((spec, start, spec.encode(start)?)),
        };
        Ok(map)
    }
}
