//! A driver that makes no multicast object. It records the calls of all ranks, refuses the one it is told to, and finds what a real
//! driver would wait for, or would do anything at.

use super::calls::{Calls, Granularity, Object, Part, Team};
use crate::error::Error;
use crate::shared::{FABRIC, Handed, Handles};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The calls, by their names in the log.
pub(crate) const CALLS: [&str; 10] = [
    "granularity",
    "create",
    "export",
    "import",
    "add",
    "bind",
    "map",
    "unmap",
    "unbind",
    "release",
];

/// Number that sizes and places are multiples of: less than an emulated GPU's pages, and more.
pub(crate) const LEAST: u64 = 1 << 13;
pub(crate) const RECOMMENDED: u64 = 1 << 21;

/// State of the drivers of all ranks.
#[derive(Debug, Default)]
pub(crate) struct Switch(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    objects: BTreeMap<u64, Made>,
    log: Vec<(u32, String)>,
    /// Deeds that no driver does as it should.
    wrong: Vec<String>,
    /// Call to refuse: the rank, the call's name, and how many of it come before.
    refuse: Option<(u32, &'static str, usize)>,
    least: Option<u64>,
}

#[derive(Debug, Default)]
struct Made {
    team: u32,
    bytes: u64,
    handles: Handles,
    /// Handles of each rank.
    held: BTreeMap<u32, u32>,
    added: BTreeSet<(u32, u32)>,
    bound: Vec<(u32, Part)>,
    mapped: BTreeMap<u32, u64>,
}

impl Switch {
    pub fn new() -> Arc<Switch> {
        Arc::default()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses that call of a rank, after so many of it.
    pub fn refuse(&self, rank: u32, call: &'static str, before: usize) {
        assert!(CALLS.contains(&call), "{call}");
        self.known().refuse = Some((rank, call, before));
    }

    /// Refuses nothing more.
    pub fn refuse_nothing(&self) {
        self.known().refuse = None;
    }

    /// Says another granularity.
    pub fn coarser(&self, least: u64) {
        self.known().least = Some(least);
    }

    /// Calls of a rank so far, in order.
    pub fn calls(&self, rank: u32) -> Vec<String> {
        let known = self.known();
        let own = known.log.iter().filter(|(of, _)| *of == rank);
        own.map(|(_, call)| call.clone()).collect()
    }

    /// The calls of all ranks, in order.
    pub fn log(&self) -> Vec<(u32, String)> {
        self.known().log.clone()
    }

    /// Deeds that no driver does as it should.
    pub fn wrong(&self) -> Vec<String> {
        self.known().wrong.clone()
    }

    /// True if nothing is left of any object.
    pub fn is_empty(&self) -> bool {
        self.known().objects.is_empty()
    }
}

/// The driver of one process.
#[derive(Debug)]
pub(crate) struct Recorder {
    rank: u32,
    switch: Arc<Switch>,
}

impl Recorder {
    pub fn of(switch: &Arc<Switch>, rank: u32) -> Arc<dyn Calls> {
        Arc::new(Recorder {
            rank,
            switch: switch.clone(),
        })
    }

    /// Logs a call, and does it unless it is to be refused.
    fn call<T>(
        &self,
        name: &'static str,
        arguments: &str,
        act: impl FnOnce(&mut Known) -> Result<T, String>,
    ) -> Result<T, Error> {
        let mut known = self.switch.known();
        let log = [name, arguments].join(" ").trim_end().to_owned();
        let of_name = |(rank, call): &&(u32, String)| {
            *rank == self.rank && call.split(' ').next() == Some(name)
        };
        let before = known.log.iter().filter(of_name).count();
        known.log.push((self.rank, log.clone()));
        let refused = Error::Driver {
            what: format!("{name} of multicast"),
            code: "not permitted".into(),
            help: "go on without it".into(),
        };
        if known.refuse == Some((self.rank, name, before)) {
            return Err(refused);
        }
        act(&mut known).map_err(|wrong| {
            known
                .wrong
                .push(format!("rank {}: {log}: {wrong}", self.rank));
            refused
        })
    }
}

impl Known {
    fn object(&mut self, object: Object) -> Result<&mut Made, String> {
        let Object(number) = object;
        self.objects
            .get_mut(&number)
            .ok_or_else(|| format!("there is no object {number}"))
    }
}

impl Made {
    /// A driver waits here, without a limit.
    fn is_whole(&self) -> Result<(), String> {
        match self.added.len() as u32 == self.team {
            true => Ok(()),
            false => Err(format!(
                "it waits for ever: {} of {} GPUs are added",
                self.added.len(),
                self.team
            )),
        }
    }
}

fn part(part: &Part) -> String {
    format!("GPU {} {}+{}", part.gpu, part.offset, part.bytes)
}

impl Calls for Recorder {
    fn granularity(&self, team: &Team) -> Result<Granularity, Error> {
        self.call("granularity", &format!("{} GPUs", team.gpus), |known| {
            Ok(Granularity {
                least: known.least.unwrap_or(LEAST),
                recommended: RECOMMENDED.max(known.least.unwrap_or(LEAST)),
            })
        })
    }

    fn create(&self, team: &Team) -> Result<Object, Error> {
        let Team {
            gpus,
            bytes,
            handles,
        } = *team;
        self.call("create", &format!("{gpus} GPUs {bytes}"), |known| {
            let number = 1 + known.log.len() as u64;
            let made = Made {
                team: gpus,
                bytes,
                handles,
                held: BTreeMap::from([(self.rank, 1)]),
                ..Made::default()
            };
            known.objects.insert(number, made);
            match bytes % RECOMMENDED == 0 {
                true => Ok(Object(number)),
                false => Err("its size is no multiple".into()),
            }
        })
    }

    fn export(&self, object: Object) -> Result<Handed, Error> {
        self.call("export", "", |known| match known.object(object)?.handles {
            Handles::Fabric => Ok(Handed::Fabric(name(object.0))),
            Handles::Files => file(object.0)
                .map(Handed::File)
                .map_err(|error| error.to_string()),
        })
    }

    fn import(&self, handed: &Handed, team: &Team) -> Result<Object, Error> {
        let by = match handed {
            Handed::File(_) => Handles::Files,
            Handed::Fabric(_) => Handles::Fabric,
        };
        self.call("import", by.told(), |known| {
            let object = Object(match handed {
                Handed::File(fd) => number(fd).map_err(|error| error.to_string())?,
                Handed::Fabric(name) => named(name),
            });
            let made = known.object(object)?;
            *made.held.entry(self.rank).or_default() += 1;
            match (made.team, made.bytes) == (team.gpus, team.bytes) {
                true => Ok(object),
                false => Err("it is of another team".into()),
            }
        })
    }

    fn add(&self, object: Object, gpu: u32) -> Result<(), Error> {
        self.call("add", &format!("GPU {gpu}"), |known| {
            let made = known.object(object)?;
            let new = made.added.insert((self.rank, gpu));
            match new && made.added.len() as u32 <= made.team {
                true => Ok(()),
                false => Err("it has that GPU, or enough".into()),
            }
        })
    }

    fn bind(&self, object: Object, at: &Part) -> Result<(), Error> {
        self.call("bind", &part(at), |known| {
            let made = known.object(object)?;
            made.is_whole()?;
            let inside = at.offset + at.bytes <= made.bytes;
            let aligned = [at.offset, at.bytes, at.address]
                .iter()
                .all(|at| at % LEAST == 0);
            let apart = made.bound.iter().all(|(rank, other)| {
                (*rank, other.gpu) != (self.rank, at.gpu)
                    || other.offset + other.bytes <= at.offset
                    || at.offset + at.bytes <= other.offset
            });
            match inside && aligned && apart && made.added.contains(&(self.rank, at.gpu)) {
                true => {
                    made.bound.push((self.rank, *at));
                    Ok(())
                }
                false => Err(
                    "it lies outside, across a multiple or another part, or the GPU is not added"
                        .into(),
                ),
            }
        })
    }

    fn map(
        &self,
        object: Object,
        (team, at): (&Team, Granularity),
        gpus: &[u32],
    ) -> Result<u64, Error> {
        self.call("map", &format!("{} for {gpus:?}", team.bytes), |known| {
            let made = known.object(object)?;
            made.is_whole()?;
            let address = (u64::from(self.rank) + 1) << 40;
            made.mapped.insert(self.rank, address);
            match address % at.recommended == 0 && team.bytes == made.bytes {
                true => Ok(address),
                false => Err("it is not all of it, or no multiple".into()),
            }
        })
    }

    fn unmap(&self, address: u64, team: &Team) -> Result<(), Error> {
        self.call("unmap", &team.bytes.to_string(), |known| {
            let mut all = known.objects.values_mut();
            let made = all.find(|made| made.mapped.get(&self.rank) == Some(&address));
            let made = made.ok_or("nothing is mapped there")?;
            made.mapped.remove(&self.rank);
            Ok(())
        })
    }

    fn unbind(&self, object: Object, at: &Part) -> Result<(), Error> {
        self.call("unbind", &part(at), |known| {
            let made = known.object(object)?;
            let found = made
                .bound
                .iter()
                .position(|bound| *bound == (self.rank, *at));
            made.bound
                .swap_remove(found.ok_or("it is not bound like that")?);
            Ok(())
        })
    }

    fn release(&self, object: Object) -> Result<(), Error> {
        self.call("release", "", |known| {
            let made = known.object(object)?;
            let held = made.held.get_mut(&self.rank).ok_or("it has no handle")?;
            *held -= 1;
            if *held == 0 {
                made.held.remove(&self.rank);
            }
            let own = made.bound.iter().any(|(rank, _)| *rank == self.rank)
                || made.mapped.contains_key(&self.rank);
            if made.held.is_empty() {
                known.objects.remove(&object.0);
            }
            match own {
                true => Err("its memory is still bound, or mapped".into()),
                false => Ok(()),
            }
        })
    }
}

/// A file descriptor that stands for an object.
fn file(number: u64) -> std::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("multicast", rustix::fs::MemfdFlags::CLOEXEC)?;
    File::from(fd.try_clone()?).write_all(&number.to_le_bytes())?;
    Ok(fd)
}

fn number(fd: &OwnedFd) -> std::io::Result<u64> {
    let mut file = File::from(fd.as_fd().try_clone_to_owned()?);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A fabric handle that stands for an object.
fn name(number: u64) -> [u8; FABRIC] {
    let mut name = [0; FABRIC];
    name[..8].copy_from_slice(&number.to_le_bytes());
    name
}

fn named(name: &[u8; FABRIC]) -> u64 {
    let (head, _) = name.split_at(8);
    head.iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
