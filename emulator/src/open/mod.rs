//! The open interpreter: GPUs whose streams get work at run time, with memory by address.
//!
//! The emulator ([`super::run`]) knows all launches before it begins, and tracks every access. This machine knows
//! nothing of what comes: hosts put [`Work`] on its streams, one piece after another, and let it [run](Machine::run).
//! Kernels take the same steps on the same numbers, on the bytes of the tensors that a launch names, and count in the
//! cells of the heap as the generated code does: a wait wants the cell's base and what arrives in its launch, and the
//! launch's end moves the bases on. Copies that the host makes are not the kernel's: the host puts them on a stream.
//!
//! A kernel begins when all its CTAs fit on its GPU beside those that run. A wait that cannot end lets others step. It
//! gives up after a time limit, when a rank gave up, or when the host says so: then it tells why, and the rest of the
//! kernel goes on without waiting. The machine has no clock: the caller says what time it is.
//!
//! A seeded policy chooses the agent that steps next. A machine whose memory refuses an access is dead: its streams are
//! empty, and [`Machine::fault`] says why.

mod bytes;
mod compare;
mod kernel;
mod twin;
mod watch;
mod work;

pub use bytes::{Fault, Memory};
pub use compare::{AHEAD, Compare};
pub use kernel::Blocked;
pub use twin::{Awaited, Stepped, Twin, TwinLaunch};
pub use watch::{Cause, GaveUp, Watch};
pub use work::{Launch, Place, Point, StreamId, Work};

use super::policy::{Numbers, Policy};
use kernel::{Running, Took};
use std::collections::VecDeque;
use twin::{Progress, Tried};

#[derive(Debug, Default)]
struct Lane {
    gpu: usize,
    queue: VecDeque<Work>,
    running: Option<Box<Running>>,
    /// Of the twin at the head of the queue.
    progress: Progress,
    done: u64,
    /// True if nothing more is put there.
    closed: bool,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.running.is_none()
    }
}

/// GPUs, their streams and their memory.
#[derive(Debug)]
pub struct Machine<M> {
    /// Memory that the streams' work accesses.
    pub memory: M,
    lanes: Vec<Lane>,
    /// SMs of each GPU, and how many are free.
    sms: Vec<(u32, u32)>,
    numbers: Numbers,
    /// Orders in which the switch adds.
    switch: Numbers,
    policy: Policy,
    told: Vec<GaveUp>,
    fault: Option<Fault>,
    /// Index of the stream that stepped last.
    last: usize,
}

/// A candidate for the next step: a stream, and a worker of its kernel.
type Turn = (usize, Option<usize>);

impl<M: Memory> Machine<M> {
    /// GPUs with so many SMs each. `seed` determines every choice.
    pub fn new(memory: M, sms: &[u32], seed: u64) -> Machine<M> {
        Machine {
            memory,
            lanes: Vec::new(),
            sms: sms.iter().map(|sms| (*sms, *sms)).collect(),
            numbers: Numbers::new(seed),
            switch: Numbers::new(!seed),
            policy: Policy::of_seed(seed, sms.len() as u32, 2),
            told: Vec::new(),
            fault: None,
            last: 0,
        }
    }

    /// A new stream of that GPU.
    pub fn stream(&mut self, gpu: usize) -> StreamId {
        // Points of the stream that was there stay past.
        let mut lanes = self.lanes.iter_mut();
        if let Some(at) = lanes.position(|lane| lane.closed && lane.is_empty()) {
            let lane = &mut self.lanes[at];
            (lane.gpu, lane.closed) = (gpu, false);
            return StreamId(at);
        }
        self.lanes.push(Lane {
            gpu,
            ..Lane::default()
        });
        StreamId(self.lanes.len() - 1)
    }

    /// Ends a stream: nothing more is put there. What is there still runs.
    pub fn close(&mut self, stream: StreamId) {
        self.lanes[stream.0].closed = true;
    }

    /// Number of streams, with those that ended and were not used again.
    pub fn streams(&self) -> usize {
        self.lanes.len()
    }

    /// Puts work on a stream, and gives the point after it.
    pub fn submit(&mut self, stream: StreamId, work: Work) -> Point {
        let lane = &mut self.lanes[stream.0];
        match self.fault {
            None => lane.queue.push_back(work),
            Some(_) => lane.done += 1,
        }
        self.now(stream)
    }

    /// The point after everything that is in the stream.
    pub fn now(&self, stream: StreamId) -> Point {
        let lane = &self.lanes[stream.0];
        Point {
            stream,
            done: lane.done + lane.queue.len() as u64 + u64::from(lane.running.is_some()),
        }
    }

    /// True if a stream has come to that point.
    pub fn is_past(&self, point: Point) -> bool {
        self.lanes[point.stream.0].done >= point.done
    }

    /// Reason that the machine is dead.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// True if no stream has work that is not done.
    pub fn is_idle(&self) -> bool {
        let is_idle = |lane: &Lane| lane.running.is_none() && lane.queue.is_empty();
        self.lanes.iter().all(is_idle)
    }

    /// The waits that gave up since the last call.
    pub fn told(&mut self) -> Vec<GaveUp> {
        std::mem::take(&mut self.told)
    }

    /// Takes up to `most` steps at the time `now`, in nanoseconds, and says how many it took: fewer, if nothing could
    /// go on.
    pub fn run(&mut self, now: u64, most: u64) -> u64 {
        let mut taken = 0;
        let mut turns = Vec::new();
        while taken < most && self.step(now, &mut turns) {
            taken += 1;
        }
        taken
    }

    /// A number below `end`, from the machine's seed.
    pub fn draw(&mut self, end: u64) -> u64 {
        self.numbers.below(end)
    }

    /// Earliest time at which a wait gives up that cannot end now.
    pub fn deadline(&self) -> Option<u64> {
        let of = |lane: &Lane| match (&lane.running, lane.queue.front()) {
            (Some(kernel), _) => kernel.deadline(),
            (None, Some(Work::Twin(twin))) => {
                let since = lane.progress.since?;
                Some(since.saturating_add(twin.watch.limit))
            }
            (None, _) => None,
        };
        self.lanes.iter().filter_map(of).min()
    }

    /// The kernels' waits that cannot end now.
    pub fn blocked(&self) -> Vec<Blocked> {
        let running = self.lanes.iter().filter_map(|lane| lane.running.as_ref());
        running
            .flat_map(|kernel| kernel.blocked(&self.memory))
            .collect()
    }

    /// Takes the first step that can be taken, in the policy's order.
    fn step(&mut self, now: u64, turns: &mut Vec<Turn>) -> bool {
        turns.clear();
        for (at, lane) in self.lanes.iter().enumerate() {
            match &lane.running {
                Some(kernel) => turns.extend((0..kernel.workers()).map(|own| (at, Some(own)))),
                None if !lane.queue.is_empty() => turns.push((at, None)),
                None => {}
            }
        }
        if turns.is_empty() {
            return false;
        }
        let (preferred, start) = self.preference(turns.len());
        for pass in [true, false] {
            for offset in 0..turns.len() {
                let turn = turns[(start + offset) % turns.len()];
                if self.prefers(preferred, turn) != pass {
                    continue;
                }
                match self.try_step(turn, now) {
                    Ok(false) => {}
                    Ok(true) => {
                        self.last = (start + offset) % turns.len();
                        return true;
                    }
                    Err(fault) => {
                        self.die(fault);
                        return false;
                    }
                }
            }
        }
        false
    }

    /// The policy, and the candidate to begin with. One step in eight is anybody's, so that no policy hides another.
    fn preference(&mut self, turns: usize) -> (Policy, usize) {
        let any = self.numbers.below(turns as u64) as usize;
        match self.policy {
            _ if self.numbers.below(8) == 0 => (Policy::Random, any),
            Policy::Lifo => (Policy::Lifo, turns - 1),
            Policy::RoundRobin => (Policy::RoundRobin, (self.last + 1) % turns),
            policy @ (Policy::Random
            | Policy::StarveRank(_)
            | Policy::StarveRole(_)
            | Policy::RunAhead(_)) => (policy, any),
        }
    }

    fn prefers(&self, policy: Policy, (lane, worker): Turn) -> bool {
        let lane = &self.lanes[lane];
        match policy {
            Policy::Random | Policy::Lifo | Policy::RoundRobin => true,
            Policy::StarveRank(rank) => lane.gpu != rank as usize,
            Policy::RunAhead(rank) => lane.gpu == rank as usize,
            Policy::StarveRole(role) => {
                let kernel = lane.running.as_ref().zip(worker);
                kernel.is_none_or(|(kernel, worker)| kernel.role_of(worker) != role as usize)
            }
        }
    }

    fn try_step(&mut self, (at, worker): Turn, now: u64) -> Result<bool, Fault> {
        let lane = &mut self.lanes[at];
        if let (Some(kernel), Some(worker)) = (&mut lane.running, worker) {
            let took = kernel.take(worker, &mut self.memory, now, &mut self.told)?;
            if took == Took::Nothing {
                return Ok(false);
            }
            if kernel.done() {
                kernel.end(&mut self.memory)?;
                self.sms[lane.gpu].1 += kernel.launch.ctas;
                lane.running = None;
                lane.done += 1;
            }
            return Ok(true);
        }
        match lane.queue.front() {
            None => return Ok(false),
            Some(Work::After(point)) => {
                let point = *point;
                if !self.is_past(point) {
                    return Ok(false);
                }
            }
            Some(Work::Kernel(launch)) => {
                let ctas = launch.ctas;
                return Ok(self.begin(at, ctas));
            }
            Some(Work::Compare(compare)) => {
                let told = compare.act(&mut self.memory, now)?;
                self.told.extend(told);
            }
            Some(Work::Twin(twin)) => {
                let (progress, told) = (&mut lane.progress, &mut self.told);
                match twin.take(progress, &mut self.memory, now, told)? {
                    Tried::Waits => return Ok(false),
                    Tried::Took => return Ok(true),
                    Tried::Ended => lane.progress = Progress::default(),
                }
            }
            Some(work) => {
                if !work.act(&mut self.memory)? {
                    return Ok(false);
                }
            }
        }
        let lane = &mut self.lanes[at];
        lane.queue.pop_front();
        lane.done += 1;
        Ok(true)
    }

    /// Begins the kernel at the head of a stream, if its CTAs fit.
    fn begin(&mut self, at: usize, ctas: u32) -> bool {
        let lane = &mut self.lanes[at];
        let (all, free) = &mut self.sms[lane.gpu];
        // One that is too large for the whole GPU runs alone: the launch path rejects it before.
        if ctas > *free && free < all {
            return false;
        }
        if let Some(Work::Kernel(launch)) = lane.queue.pop_front() {
            let mut launch = Launch::clone(&launch);
            launch.ctas = ctas.min(*free);
            *free -= launch.ctas;
            let numbers = &mut self.numbers;
            let switch = Numbers::new(self.switch.draw());
            let running = Running::new(launch, switch, || 1 + numbers.below(3) as u32);
            // A launch may have nothing to do.
            if running.done() {
                *free += running.launch.ctas;
                lane.done += 1;
            } else {
                lane.running = Some(Box::new(running));
            }
        }
        true
    }

    fn die(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
        for lane in &mut self.lanes {
            lane.done += lane.queue.len() as u64 + u64::from(lane.running.is_some());
            lane.queue.clear();
            lane.running = None;
            lane.progress = Progress::default();
        }
        for (all, free) in &mut self.sms {
            *free = *all;
        }
    }
}
