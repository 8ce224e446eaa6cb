//! A process's part of a multicast view: the object, the memory of its ranks that is bound, and where the object is mapped.

use super::calls::{Calls, Granularity, Object, Part, Team};
use crate::error::Error;
use crate::shared::Handed;
use std::sync::Arc;
use tracing::warn;

/// A store to an address of it reaches every rank's slot at the same offset. It is undone in reverse: unmapped, then unbound,
/// while the memory is there, then released.
#[derive(Debug)]
pub(crate) struct View {
    calls: Arc<dyn Calls>,
    object: Object,
    team: Team,
    granularity: Granularity,
    /// The GPUs of this process's ranks.
    gpus: Vec<u32>,
    bound: Vec<Part>,
    address: Option<u64>,
    /// Bytes of each slot, from its start, that every rank has bound.
    reaches: u64,
}

impl View {
    /// A new object for a team.
    pub fn create(
        calls: &Arc<dyn Calls>,
        place: (Team, Granularity),
        gpus: Vec<u32>,
    ) -> Result<View, Error> {
        let object = calls.create(&place.0)?;
        Ok(View::of(calls, object, place, gpus))
    }

    /// Opens the object in another process.
    pub fn import(
        calls: &Arc<dyn Calls>,
        handed: &Handed,
        place: (Team, Granularity),
        gpus: Vec<u32>,
    ) -> Result<View, Error> {
        let object = calls.import(handed, &place.0)?;
        Ok(View::of(calls, object, place, gpus))
    }

    fn of(
        calls: &Arc<dyn Calls>,
        object: Object,
        (team, granularity): (Team, Granularity),
        gpus: Vec<u32>,
    ) -> View {
        View {
            calls: calls.clone(),
            object,
            team,
            granularity,
            gpus,
            bound: Vec::new(),
            address: None,
            reaches: 0,
        }
    }

    /// For the other processes.
    pub fn export(&self) -> Result<Handed, Error> {
        self.calls.export(self.object)
    }

    /// Adds the GPUs of this process's ranks.
    pub fn add(&self) -> Result<(), Error> {
        let mut gpus = self.gpus.iter();
        gpus.try_for_each(|gpu| self.calls.add(self.object, *gpu))
    }

    /// Binds memory of this process's ranks, all of it or none. Call it only once all ranks have added their GPUs: the
    /// driver waits for that without a limit.
    pub fn bind(&mut self, parts: &[Part]) -> Result<(), Error> {
        let before = self.bound.len();
        for part in parts {
            match self.calls.bind(self.object, part) {
                Ok(()) => self.bound.push(*part),
                Err(refused) => {
                    self.unbind(before);
                    return Err(refused);
                }
            }
        }
        Ok(())
    }

    /// Gives the object addresses. The same holds as for [`View::bind`].
    pub fn map(&mut self) -> Result<(), Error> {
        let place = (&self.team, self.granularity);
        self.address = Some(self.calls.map(self.object, place, &self.gpus)?);
        Ok(())
    }

    /// Every rank has bound so many bytes of its slot.
    pub fn reaches_to(&mut self, bytes: u64) {
        self.reaches = bytes;
    }

    /// Takes back what lies beyond what every rank has bound.
    pub fn take_back(&mut self) {
        let kept = self
            .bound
            .iter()
            .take_while(|part| part.offset < self.reaches);
        self.unbind(kept.count());
    }

    /// Bytes of each slot that it reaches, from the start.
    pub fn reaches(&self) -> u64 {
        self.reaches
    }

    /// Memory that is bound is a multiple of so many bytes.
    pub fn granularity(&self) -> u64 {
        self.granularity.least
    }

    /// The address of an offset, if all of so many bytes behind it is bound on every rank.
    pub fn address(&self, offset: u64, bytes: u64) -> Option<u64> {
        let within = offset.checked_add(bytes)? <= self.reaches;
        self.address.filter(|_| within).map(|at| at + offset)
    }

    fn unbind(&mut self, from: usize) {
        for part in self.bound.drain(from..).rev() {
            noted(self.calls.unbind(self.object, &part));
        }
    }
}

/// Nobody is there to hear of what the driver does not undo, but who reads the log. What comes behind it is undone all the same.
fn noted(undone: Result<(), Error>) {
    if let Err(error) = undone {
        warn!(
            %error,
            "a part of a multicast view was not undone: end this process, and look at the GPUs' fabric state before the next one"
        );
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(address) = self.address.take() {
            noted(self.calls.unmap(address, &self.team));
        }
        self.unbind(0);
        noted(self.calls.release(self.object));
    }
}
