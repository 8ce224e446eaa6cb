//! Groups of some of the ranks: each is a communicator of its own, with a heap, a ledger and an end of its own.

use super::peers::Peers;
use super::refusal::Refusal;
use super::request::{Granted, Request, refused};
use super::within::Within as Whose;
use super::{Answer, Group, Part, differing, lock};
use crate::error::Error;
use crate::rendezvous::{Deadline, Rendezvous};
use crate::shared::Links;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Color and key of a group of all ranks, in their order.
pub(super) const ALL: (u32, u32) = (0, 0);

/// Use of a group of some of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The program's.
    Split,
    /// Something is tried there, which may stall. The ranks are all of them.
    Trial,
}

impl Kind {
    /// First word of a rank that asks for it: other calls say something else.
    fn word(self) -> &'static str {
        match self {
            Kind::Split => "split ",
            Kind::Trial => "try ",
        }
    }

    /// Tells a new group what it is for.
    fn marks(self, group: &Group, within: impl FnOnce() -> Whose) {
        match self {
            Kind::Split => group.within(within()),
            // Its ranks have the numbers that they have outside.
            Kind::Trial => group.is_trial(),
        }
    }
}

/// Members of each group: its ranks, in the order that they have there.
fn members(asked: &[(u32, u32)]) -> BTreeMap<u32, Vec<u32>> {
    let mut ordered: Vec<(u32, u32, u32)> = (0..)
        .zip(asked)
        .map(|(rank, (color, key))| (*color, *key, rank))
        .collect();
    ordered.sort_unstable();
    let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (color, _, rank) in ordered {
        groups.entry(color).or_default().push(rank);
    }
    groups
}

impl Group {
    /// A rank's group of all that ask for that color, by their keys, and which rank it is there.
    pub(crate) fn split(&self, rank: u32, (color, key): (u32, u32)) -> Result<Part, Error> {
        self.part(
            rank,
            &Request::Split { color, key },
            (color, key),
            Kind::Split,
        )
    }

    /// A rank's group of all ranks, in which they try something that may stall, and which rank it is there.
    pub(crate) fn trial(&self, rank: u32) -> Result<Part, Error> {
        self.part(rank, &Request::Try, ALL, Kind::Trial)
    }

    fn part(
        &self,
        rank: u32,
        request: &Request,
        asked: (u32, u32),
        kind: Kind,
    ) -> Result<Part, Error> {
        if let Some(peers) = &self.peers {
            let _one = lock(&self.calling);
            return self.split_apart(peers, request, asked, kind);
        }
        let granted = self.meet(rank, request)?;
        let part = match &granted {
            Granted::Split(number) => lock(&self.parts).remove(&(*number, rank)),
            Granted::Done | Granted::Kernel(_) | Granted::Memory(_) | Granted::Told(_) => None,
        };
        part.ok_or_else(|| Error::Mismatch {
            what: format!("a split gave {granted:?}"),
            help: "report it".into(),
        })
    }

    /// Makes the groups of ranks of one process. Each rank takes its part.
    pub(super) fn parts_of(&self, asked: &[(u32, u32)], kind: Kind) -> Answer {
        let mut made = Vec::new();
        for (color, ranks) in members(asked) {
            let gpus = ranks.iter().map(|rank| self.gpu(*rank).clone());
            let group = Group::new(gpus.collect(), Some(self.stride()), self.timeout)
                .map_err(Refusal::from)?;
            let group = self.split_off(group);
            kind.marks(&group, || Whose::new(color, &ranks, self.end.group()));
            let group = Arc::new(group);
            made.extend(
                (0..)
                    .zip(ranks)
                    .map(|(own, rank)| (rank, group.clone(), own)),
            );
        }
        let mut parts = lock(&self.parts);
        // No rank has yet to take a part of that number.
        let number = parts.keys().next_back().map_or(0, |(last, _)| last + 1);
        parts.extend(
            made.into_iter()
                .map(|(rank, group, own)| ((number, rank), (group, own))),
        );
        Ok(Granted::Split(number))
    }

    /// A group of some of these ranks. The others are on their GPUs as before, in another part.
    fn split_off(&self, part: Group) -> Group {
        Group {
            sharing: part.sharing || self.sharing,
            ..part
        }
    }

    /// Splits a group of ranks that are processes.
    fn split_apart(
        &self,
        peers: &Peers,
        request: &Request,
        (color, key): (u32, u32),
        kind: Kind,
    ) -> Result<Part, Error> {
        let deadline = Deadline::after(self.timeout);
        let what = request.to_string();
        let mine = format!("{}{color} {key}\0{what}", kind.word());
        let said = peers.gather(&what, mine.as_bytes())?;
        let said: Vec<_> = said
            .iter()
            .map(|one| String::from_utf8_lossy(one))
            .collect();
        if let Some(refusal) = refused(said.iter().map(AsRef::as_ref)) {
            return Err(refusal.into());
        }
        let asked: Option<Vec<(u32, u32)>> = said.iter().map(|one| asked_for(one, kind)).collect();
        let asked = asked.ok_or_else(|| {
            let each = said.iter().map(|one| one.split('\0').next_back());
            Error::from(differing(each.map(|one| one.unwrap_or("").to_owned())))
        })?;
        let ranks = members(&asked).remove(&color).unwrap_or_default();
        let within = Within::new(peers, ranks.clone());
        let links = Links::make(&within, deadline)?;
        let gpu = self.gpu(peers.rank()).clone();
        let group = self.split_off(Group::apart(|| Ok(gpu), true, links, deadline)?);
        kind.marks(&group, || Whose::new(color, &ranks, self.end.group()));
        Ok((Arc::new(group), within.own))
    }
}

fn asked_for(said: &str, kind: Kind) -> Option<(u32, u32)> {
    let (numbers, _) = said.strip_prefix(kind.word())?.split_once('\0')?;
    let (color, key) = numbers.split_once(' ')?;
    Some((color.parse().ok()?, key.parse().ok()?))
}

/// Some of the ranks, who gather among all: every rank of the communicator gathers as often.
struct Within<'a> {
    peers: &'a Peers,
    ranks: Vec<u32>,
    own: u32,
}

impl Within<'_> {
    fn new(peers: &Peers, ranks: Vec<u32>) -> Within<'_> {
        let own = ranks.iter().position(|rank| *rank == peers.rank());
        let own = own.unwrap_or(0) as u32;
        Within { peers, ranks, own }
    }
}

impl Rendezvous for Within<'_> {
    fn rank(&self) -> u32 {
        self.own
    }

    fn world(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The communicator has a limit of its own, which is no longer.
    fn all_gather(&self, mine: &[u8], _: Duration) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = self.peers.gather("joins a group", mine)?;
        let ranks = self.ranks.iter();
        Ok(ranks
            .map(|rank| std::mem::take(&mut all[*rank as usize]))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::emulated::{self, Machine};
    use crate::rendezvous::Threads;

    #[test]
    fn a_group_has_slots_as_long_as_those_of_all() {
        let machine = Machine::new(2, 0, u64::MAX);
        let gpus = (0..2).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
        let ranks = Communicator::of(gpus.collect(), Some(8 << 20), Duration::from_secs(60));
        let ranks = ranks.expect("ranks");
        let strides = Communicator::each(&ranks, |rank| Ok(rank.split(0, 0)?.stride()));
        assert_eq!(strides.expect("groups"), [ranks[0].stride(); 2]);
    }

    #[test]
    fn a_part_of_ranks_that_share_gpus_shares_them_too() {
        let limit = Duration::from_secs(60);
        let parts = |gpus: [u32; 4], colors: [u32; 4]| {
            let machine = Machine::new(4, 0, u64::MAX);
            let gpus = gpus.map(|gpu| emulated::Gpu::of(&machine, gpu).into());
            let ranks = Communicator::of(gpus.to_vec(), Some(2 << 20), limit).expect("ranks");
            let shares = Communicator::each(&ranks, |rank| {
                let part = rank.split(colors[rank.rank() as usize], 0)?;
                let own = part.split(rank.rank(), 0)?;
                Ok([part.any_shares_gpu(), own.any_shares_gpu()])
            });
            shares.expect("parts")
        };
        // Each part has two GPUs, and the other one is on them.
        assert_eq!(parts([0, 1, 0, 1], [0, 0, 1, 1]), [[true; 2]; 4]);
        assert_eq!(parts([0, 1, 2, 3], [0, 0, 1, 1]), [[false; 2]; 4]);
    }

    #[test]
    fn a_part_of_processes_that_share_gpus_shares_them_too() {
        let limit = Duration::from_secs(60);
        let parts = |sharing| {
            let machine = Machine::new(2, 0, u64::MAX);
            let part = |seat: &dyn Rendezvous| {
                let deadline = Deadline::after(limit);
                let links = Links::make(seat, deadline)?;
                let gpu = emulated::Gpu::of(&machine, seat.rank()).into();
                let mut group = Group::apart(|| Ok(gpu), true, links, deadline)?;
                // An emulated GPU has no name by which a process knew that it is another's too.
                group.sharing = sharing;
                let (part, _) = group.split(seat.rank(), (seat.rank(), 0))?;
                Ok::<_, Error>(part.any_shares())
            };
            std::thread::scope(|scope| {
                let started = Threads::of(2).into_iter();
                let started = started.map(|seat| scope.spawn(move || part(&seat)));
                let started: Vec<_> = started.collect();
                let done = started.into_iter().map(|one| one.join().expect("no panic"));
                done.collect::<Result<Vec<bool>, Error>>().expect("parts")
            })
        };
        assert_eq!(parts(true), [true; 2]);
        assert_eq!(parts(false), [false; 2]);
    }

    #[test]
    fn groups_have_the_order_of_keys_and_then_of_ranks() {
        let groups = members(&[(7, 1), (3, 5), (7, 0), (3, 5), (7, 0)]);
        assert_eq!(
            groups,
            BTreeMap::from([(3, vec![1, 3]), (7, vec![2, 4, 0])])
        );
        let split = |said| asked_for(said, Kind::Split);
        assert_eq!(split("split 7 1\0splits by 7 and 1"), Some((7, 1)));
        for other in [
            "Meet\0is at a barrier",
            "split 7\0x",
            "split 7 -1\0x",
            "try 0 0\0x",
        ] {
            assert_eq!(split(other), None);
        }
        assert_eq!(
            asked_for("try 0 0\0tries candidates", Kind::Trial),
            Some(ALL)
        );
    }
}
