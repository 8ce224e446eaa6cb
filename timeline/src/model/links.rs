//! Links and memories as servers, and transfers through them.
//!
//! Each direction of a rank's link serves one packet after another at the rate of the packet's path. A transfer is a
//! sequence of packets of 256 KiB with one in flight at a time. So transfers that share a link alternate and share it
//! evenly, as on the machine, and a single transfer has all of it (or all that its CTA can issue). That costs two
//! events per packet with any number of transfers; exact processor sharing would change every rate at each event.
//! Receivers queue without blocking their senders' other packets: the switch does not block.
//!
//! A store to every rank occupies its sender's link once, and that of each receiver, its sender too. A sum in the switch occupies the link of
//! every rank whose copy it reads, the reader's own too, and then the reader's once.

use super::cost::{Ps, at_rate};
use super::volume::EVERYWHERE;

/// Bytes of a packet.
pub(super) const PACKET: u64 = 256 << 10;

/// Path of bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Path {
    /// Bytes a second on an idle link.
    pub link: f64,
    /// The issuer's own limit in bytes a second.
    pub issuer: f64,
    /// Time before the first byte.
    pub latency: Ps,
}

/// A transfer in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub worker: u32,
    /// Issued by the worker's store lane, so the worker continues.
    pub lane: bool,
    pub op: counterflow_codegen::kernel::OpId,
    pub src: u16,
    pub dst: u16,
    /// A copy engine goes to every rank, one after another: those behind `dst` are still to come.
    pub turns: bool,
    pub bytes: u64,
    pub left: u64,
    pub path: Path,
    pub start: Ps,
}

/// Time at which each server has finished its queue.
pub(super) struct Servers {
    out: Vec<Ps>,
    into: Vec<Ps>,
    memory: Vec<Ps>,
    memory_rate: f64,
}

impl Servers {
    pub(super) fn new(world: u32, memory_rate: f64) -> Self {
        let idle = vec![0; world as usize];
        Servers {
            out: idle.clone(),
            into: idle.clone(),
            memory: idle,
            memory_rate,
        }
    }

    /// Puts a packet on its senders' links. Gives when the last of them starts to send.
    pub(super) fn depart(&mut self, now: Ps, transfer: &Transfer, bytes: u64) -> Ps {
        let time = at_rate(bytes, transfer.path.link);
        let mut departs = now;
        for src in ends(transfer.src, self.out.len()) {
            let free = &mut self.out[src];
            let start = now.max(*free);
            *free = start + time;
            departs = departs.max(start);
        }
        departs
    }

    /// Takes a packet off its receivers' links. Gives when the last of them has all of it.
    pub(super) fn arrive(&mut self, now: Ps, transfer: &Transfer, bytes: u64) -> Ps {
        let time = at_rate(bytes, transfer.path.link);
        let mut landed = now + at_rate(bytes, transfer.path.issuer);
        for dst in ends(transfer.dst, self.into.len()) {
            let free = &mut self.into[dst];
            *free = now.max(*free) + time;
            landed = landed.max(*free);
        }
        landed
    }

    /// Reads or writes a rank's memory by one SM. Gives when it is done.
    pub(super) fn memory(&mut self, now: Ps, rank: u16, bytes: u64, sm_rate: f64) -> Ps {
        let free = &mut self.memory[usize::from(rank)];
        *free = now.max(*free) + at_rate(bytes, self.memory_rate);
        (*free).max(now + at_rate(bytes, sm_rate))
    }
}

/// The ranks at one end of a transfer: one, or all.
fn ends(end: u16, world: usize) -> std::ops::Range<usize> {
    match end {
        EVERYWHERE => 0..world,
        one => usize::from(one)..usize::from(one) + 1,
    }
}

/// The first of the ranks `from..world` that a copy engine's store to every rank goes to: its source has it already.
pub(super) fn receiver(from: u16, src: u16, world: u32) -> Option<u16> {
    (from..world as u16).find(|rank| *rank != src)
}
