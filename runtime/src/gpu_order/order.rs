//! Order of the launches on a GPU, and refusals: numbers alone, with streams and events of any kind.

use crate::driver::Gpu;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

/// A launch of a communicator: its number, and the launch's.
pub(super) type Launch = (u64, u64);

/// A GPU: the machine that it is in, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Where {
    machine: usize,
    gpu: u32,
}

impl From<&Gpu> for Where {
    fn from(gpu: &Gpu) -> Where {
        Where {
            machine: gpu.machine(),
            gpu: gpu.ordinal(),
        }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.gpu)
    }
}

/// State of the last launch of a rank.
#[derive(Clone, Debug)]
pub(super) enum Last<E> {
    Done,
    /// Enqueued while no other communicator was on the GPU, so without an event.
    Unmarked,
    Marked(E),
}

/// A communicator's ranks on one GPU.
#[derive(Debug)]
struct Place<S, E> {
    gpu: Where,
    /// Each rank's stream, and how far its last launch is.
    ranks: Vec<(S, Last<E>)>,
    /// The latest launch on this GPU.
    launch: u64,
    /// The most CTAs of a rank's launches since none was running.
    ctas: u32,
    /// Number of launches that are being enqueued.
    entering: u32,
    /// First launch that each rank has not begun.
    next: Vec<u64>,
    /// Launches that came after, for the ranks that make them later than the first one here.
    turns: Vec<Taken<E>>,
}

/// A turn: launches in a row that wait for nobody between them. Not all ranks on the GPU have made them.
#[derive(Debug)]
struct Taken<E> {
    launches: RangeInclusive<u64>,
    /// Launches of other communicators that come before, each until its events.
    after: Vec<(Launch, Vec<E>)>,
}

impl<E> Taken<E> {
    /// True if launches of these are among it.
    fn has(&self, launches: &RangeInclusive<u64>) -> bool {
        self.launches.start() <= launches.end() && launches.start() <= self.launches.end()
    }

    /// True if it comes after that launch.
    fn follows(&self, (member, launch): Launch) -> bool {
        let mut after = self.after.iter();
        after.any(|((other, known), _)| *other == member && *known >= launch)
    }
}

/// A launch that waits for another one on a GPU, until that event.
#[derive(Debug)]
struct Edge<E> {
    first: Launch,
    then: Launch,
    gpu: Where,
    until: Vec<E>,
}

/// Two orders of two communicators' launches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Crossed {
    ours: Launch,
    theirs: Launch,
    here: Where,
    there: Where,
}

impl fmt::Display for Crossed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crossed {
            ours: (us, our),
            theirs: (them, their),
            here,
            there,
        } = self;
        write!(
            f,
            "two communicators take turns in two orders: on {here} launch {our} of communicator {us} comes after launch {their} of communicator {them}, and on {there} that waits for it"
        )
    }
}

/// A graph's launches, between which another rank on the GPU let another communicator's launch go first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Split {
    member: u64,
    launches: RangeInclusive<u64>,
    theirs: Launch,
    here: Where,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Split {
            member,
            launches,
            theirs: (them, their),
            here,
        } = self;
        let (first, last) = (launches.start(), launches.end());
        write!(
            f,
            "a rank on {here} replays launches {first} to {last} of communicator {member} at once, and another rank there lets launch {their} of communicator {them} come between them"
        )
    }
}

/// Answer to a launch that wants to be enqueued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Turn<E> {
    /// Once these are past.
    After(Vec<E>),
    /// Another communicator's launch is just being enqueued. Ask again.
    Busy,
    Crossed(Crossed),
    Split(Split),
}

/// A rank of a communicator: its GPU, and which of the communicator's ranks there it is.
pub(super) type Rank = (Where, usize);

/// The launches of all communicators.
#[derive(Debug)]
pub(super) struct Order<S, E> {
    members: BTreeMap<u64, Vec<Place<S, E>>>,
    edges: Vec<Edge<E>>,
    /// Communicators that nobody waits for: their launches come after those of others, and may give up.
    yielding: BTreeSet<u64>,
}

impl<S, E: Clone> Place<S, E> {
    /// A rank enqueues launches.
    fn enter(&mut self, index: usize, launches: &RangeInclusive<u64>, ctas: u32) {
        self.next[index] = launches.end() + 1;
        let made = self.next.iter().min().copied().unwrap_or(0);
        self.turns.retain(|turn| *turn.launches.end() >= made);
        self.entering += 1;
        self.ctas = self.ctas.max(ctas);
    }
}

impl<S: Clone, E: Clone> Order<S, E> {
    pub(super) const fn new() -> Self {
        Order {
            members: BTreeMap::new(),
            edges: Vec::new(),
            yielding: BTreeSet::new(),
        }
    }

    /// A new communicator, with the GPU and stream of each rank.
    pub(super) fn join(&mut self, member: u64, ranks: impl IntoIterator<Item = (Where, S)>) {
        let mut places: Vec<Place<S, E>> = Vec::new();
        for (gpu, stream) in ranks {
            let rank = (stream, Last::Done);
            match places.iter_mut().find(|place| place.gpu == gpu) {
                Some(place) => {
                    place.ranks.push(rank);
                    place.next.push(0);
                }
                None => places.push(Place {
                    gpu,
                    ranks: vec![rank],
                    next: vec![0],
                    launch: 0,
                    ctas: 0,
                    entering: 0,
                    turns: Vec::new(),
                }),
            }
        }
        self.members.insert(member, places);
    }

    /// No launch of another communicator waits for that one's from now on.
    pub(super) fn yields(&mut self, member: u64) {
        self.yielding.insert(member);
    }

    /// A communicator whose launches are all done.
    pub(super) fn leave(&mut self, member: u64) {
        self.members.remove(&member);
        self.yielding.remove(&member);
        self.edges
            .retain(|edge| edge.first.0 != member && edge.then.0 != member);
    }

    fn place(&mut self, member: u64, gpu: Where) -> Option<&mut Place<S, E>> {
        let places = self.members.get_mut(&member)?;
        places.iter_mut().find(|place| place.gpu == gpu)
    }

    /// True if only that communicator has ranks on the GPU.
    fn alone(&self, member: u64, gpu: Where) -> bool {
        self.others(member).all(|(_, place)| place.gpu != gpu)
    }

    /// Other communicators' ranks, on whichever GPU.
    fn others(&self, member: u64) -> impl Iterator<Item = (u64, &Place<S, E>)> {
        let others = self.members.iter();
        let others = others.filter(move |(other, _)| **other != member);
        others.flat_map(|(other, places)| places.iter().map(|place| (*other, place)))
    }

    /// True if another communicator has ranks on one of that one's GPUs. One that yields serves another's trial, and is not
    /// counted.
    pub(super) fn has_company(&self, member: u64) -> bool {
        let own = self.members.get(&member).map_or(&[][..], Vec::as_slice);
        let mut others = self.others(member);
        others.any(|(other, place)| {
            !self.yielding.contains(&other) && own.iter().any(|mine| mine.gpu == place.gpu)
        })
    }

    /// True if a launch of another communicator runs on that GPU or is being enqueued there, whether it yields or not.
    pub(super) fn is_busy_beside(
        &self,
        member: u64,
        gpu: Where,
        done: impl Fn(&E) -> bool,
    ) -> bool {
        let runs = |last: &Last<E>| match last {
            Last::Done => false,
            // Its event is on the way.
            Last::Unmarked => true,
            Last::Marked(event) => !done(event),
        };
        let mut here = self.others(member).filter(|(_, place)| place.gpu == gpu);
        here.any(|(_, place)| place.entering > 0 || place.ranks.iter().any(|(_, last)| runs(last)))
    }

    /// The streams whose last launch has no event: communicator, GPU, rank there.
    pub(super) fn unmarked(&self, gpus: &[Where]) -> Vec<(u64, Where, usize, S)> {
        let mut found = Vec::new();
        for (member, places) in &self.members {
            for place in places.iter().filter(|place| gpus.contains(&place.gpu)) {
                for (index, (stream, last)) in place.ranks.iter().enumerate() {
                    if matches!(last, Last::Unmarked) {
                        found.push((*member, place.gpu, index, stream.clone()));
                    }
                }
            }
        }
        found
    }

    /// An event after everything in such a stream. A launch since then has an event of its own.
    pub(super) fn mark(&mut self, (member, gpu, index): (u64, Where, usize), event: E) {
        if let Some(place) = self.place(member, gpu)
            && let Some((_, last @ Last::Unmarked)) = place.ranks.get_mut(index)
        {
            *last = Last::Marked(event);
        }
    }

    /// A rank is about to enqueue launches in a row, of so many CTAs at most, on a GPU with `sms` SMs. After
    /// [`Turn::After`], call [`Order::end`].
    pub(super) fn begin(
        &mut self,
        (member, launches): (u64, &RangeInclusive<u64>),
        (gpu, index): Rank,
        (ctas, sms): (u32, u32),
        done: impl Fn(&E) -> bool,
    ) -> Turn<E> {
        let alone = self.alone(member, gpu);
        let Some(place) = self.place(member, gpu) else {
            return Turn::After(Vec::new());
        };
        let sharing = place.ranks.len() as u32;
        let split = |theirs| {
            Turn::Split(Split {
                member,
                launches: launches.clone(),
                theirs,
                here: gpu,
            })
        };
        // The communicator's first rank here has decided for all of them: they must be on the GPU together.
        let mut turns = place.turns.iter().filter(|turn| turn.has(launches));
        let first = turns.next().map(|turn| {
            let waits = turn.after.iter().flat_map(|(_, until)| until.clone());
            (*turn.launches.start(), waits.collect::<Vec<_>>())
        });
        for (theirs, until) in turns.flat_map(|turn| &turn.after) {
            if !until.iter().all(&done) {
                return split(*theirs);
            }
        }
        let known = place.turns.last().map(|turn| *turn.launches.end());
        if let Some((_, waits)) = &first
            && known >= Some(*launches.end())
        {
            let waits = waits.clone();
            place.enter(index, launches, ctas);
            return Turn::After(waits);
        }
        let running = match alone {
            true => Vec::new(),
            false => {
                self.edges.retain(|edge| !edge.until.iter().all(&done));
                let wanted = ctas.saturating_mul(sharing);
                match self.in_the_way((member, gpu), (wanted, sms), &done) {
                    Some(running) => running,
                    None => return Turn::Busy,
                }
            }
        };
        let Some(place) = self.place(member, gpu) else {
            return Turn::After(Vec::new());
        };
        // The turn goes on, if nobody came in between.
        if let Some((start, waits)) = first {
            let turn = place
                .turns
                .iter_mut()
                .find(|turn| *turn.launches.start() == start);
            if let Some(turn) = turn {
                let mut theirs = running.iter().map(|(theirs, _)| *theirs);
                if let Some(theirs) = theirs.find(|theirs| !turn.follows(*theirs)) {
                    return split(theirs);
                }
                turn.launches = start..=*launches.end();
            }
            place.enter(index, launches, ctas);
            return Turn::After(waits);
        }
        let ours = (member, *launches.start());
        for (theirs, _) in &running {
            if let Some(there) = self.waits_for(*theirs, ours) {
                return Turn::Crossed(Crossed {
                    ours,
                    theirs: *theirs,
                    here: gpu,
                    there,
                });
            }
        }
        let mut waits = Vec::new();
        for (first, until) in &running {
            waits.extend(until.iter().cloned());
            self.edges.push(Edge {
                first: *first,
                then: ours,
                gpu,
                until: until.clone(),
            });
        }
        if let Some(place) = self.place(member, gpu) {
            if sharing > 1 {
                place.turns.push(Taken {
                    launches: launches.clone(),
                    after: running,
                });
            }
            place.enter(index, launches, ctas);
        }
        Turn::After(waits)
    }

    /// The launches of other communicators that run on a GPU, each until its events, if so many more CTAs do not fit
    /// beside them. None while one is being enqueued.
    fn in_the_way(
        &mut self,
        (member, gpu): (u64, Where),
        (mut wanted, sms): (u32, u32),
        done: &impl Fn(&E) -> bool,
    ) -> Option<Vec<(Launch, Vec<E>)>> {
        let mut running = Vec::new();
        for (other, places) in &mut self.members {
            let mut here = places.iter_mut().filter(|place| place.gpu == gpu);
            let counts = *other != member && !self.yielding.contains(other);
            let Some(place) = here.next().filter(|_| counts) else {
                continue;
            };
            let mut until = Vec::new();
            for (_, last) in &mut place.ranks {
                match last {
                    Last::Marked(event) if !done(event) => until.push(event.clone()),
                    Last::Marked(_) => *last = Last::Done,
                    Last::Unmarked => return None,
                    Last::Done => {}
                }
            }
            if place.entering > 0 {
                return None;
            }
            if until.is_empty() {
                place.ctas = 0;
                continue;
            }
            let ranks = place.ranks.len() as u32;
            wanted = wanted.saturating_add(place.ctas.saturating_mul(ranks));
            running.push(((*other, place.launch), until));
        }
        if wanted <= sms {
            running.clear();
        }
        Some(running)
    }

    /// GPU on which the first launch comes after the second or a later one of the same communicator, if it does.
    fn waits_for(&self, first: Launch, second: Launch) -> Option<Where> {
        // Of each communicator, the latest launch that comes before.
        let mut before = BTreeMap::from([first]);
        loop {
            let further = self.edges.iter().find(|edge| {
                let reached = |(member, launch): Launch| {
                    before.get(&member).is_some_and(|known| *known >= launch)
                };
                reached(edge.then) && !reached(edge.first)
            })?;
            let (member, launch) = further.first;
            if member == second.0 && launch >= second.1 {
                return Some(further.gpu);
            }
            before.insert(member, launch);
        }
    }

    /// The launch is in its stream, and needs no event if the communicator is alone on the GPU. Whether it is.
    pub(super) fn end_alone(&mut self, ours: Launch, gpu: Where, index: usize) -> bool {
        let alone = self.alone(ours.0, gpu);
        if alone {
            self.end(ours, gpu, index, Last::Unmarked);
        }
        alone
    }

    /// The launch is in its stream.
    pub(super) fn end(
        &mut self,
        (member, launch): Launch,
        gpu: Where,
        index: usize,
        state: Last<E>,
    ) {
        if let Some(place) = self.place(member, gpu) {
            place.entering -= 1;
            place.launch = place.launch.max(launch);
            if let Some((_, last)) = place.ranks.get_mut(index) {
                *last = state;
            }
        }
    }

    /// The streams of all communicators' ranks on a GPU that have that place there.
    pub(super) fn streams(&self, gpu: Where, index: usize) -> Vec<S> {
        let places = self.members.values().flatten();
        let places = places.filter(|place| place.gpu == gpu);
        let ranks = places.filter_map(|place| place.ranks.get(index));
        ranks.map(|(stream, _)| stream.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
