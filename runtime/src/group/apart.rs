//! From connected processes to the ranks of a communicator: each says what GPU it has, rank 0 hands out
//! the memory that all share, and each maps the others' part of the heap.

use super::abort::End;
use super::board::Board;
use super::callers::Callers;
use super::heap::Heap;
use super::meeting::Meeting;
use super::peers::Peers;
use super::pool::Pool;
use super::rings::Rings;
use super::verdict::Verdict;
use super::{Book, CONTROL, Group, cells};
use crate::cuda::not_offered;
use crate::driver::{About, Gpu, Reached, Slots, Stream};
use crate::error::Error;
use crate::gpu_order::{Member, lane};
use crate::rendezvous::{Deadline, random};
use crate::shared::{Handles, Links, Segment};
use counterflow_codegen::host::Queues;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// First message of a rank to the others: what it has, or why it cannot go on and what helps.
#[derive(Serialize, Deserialize)]
struct Introduction {
    has: Result<Has, (String, String)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Has {
    gpu: About,
    /// Number that no other process has: process numbers of several containers may be alike.
    process: u64,
    /// True if it may share the GPU with other processes.
    sharing: bool,
    /// A number that no other memory has. Rank 0's is that of what it hands out.
    number: u64,
    /// Numbers of memory that it has from before, and that nobody there uses.
    unused: Vec<u64>,
}

/// Memory with the number that it has in all processes.
type Numbered = (u64, Arc<Segment>);

impl Group {
    /// Ranks that are processes, for one of them, on the GPU that `open` gives.
    pub(crate) fn apart(
        open: impl FnOnce() -> Result<Gpu, Error>,
        sharing: bool,
        links: Links,
        deadline: Deadline,
    ) -> Result<Group, Error> {
        Group::apart_by(Handles::wanted(), open, sharing, links, deadline)
    }

    /// Makes a group of processes whose memory is handed over in that way. An unusable way from the environment is
    /// told to all ranks.
    pub(super) fn apart_by(
        handles: Result<Handles, Error>,
        open: impl FnOnce() -> Result<Gpu, Error>,
        sharing: bool,
        mut links: Links,
        deadline: Deadline,
    ) -> Result<Group, Error> {
        let open = || Ok((open()?, handles?));
        let timeout = deadline.limit;
        let (rank, world) = (links.rank(), links.world());
        let (gpu, control, all) = introduced(open, sharing, &mut links, deadline)?;
        must_fit(&all)?;
        let sharing = shared(&all);
        let cells = cells(world);
        let prepared = Prepared::new(&gpu, &control, &all, (rank, cells.end), timeout);
        let Prepared {
            slots,
            stream,
            queues,
            at,
        } = all_can(&mut links, prepared, deadline)?;

        let board = Board::new(control.1, world);
        let end = Arc::new(End::apart(board.clone(), rank, world, at.address()));
        // From here on the others hear of the end.
        let tell = |error: Error| {
            end.end(Verdict::Aborted(format!(
                "rank {rank} ended early: {error}"
            )));
            error
        };
        let peers = Arc::new(Peers::new(links, &end, timeout).map_err(tell)?);
        // Nobody enqueues anything before all ranks have mapped and cleared all memory: this waits for them.
        let heap = Heap::apart((gpu, stream), slots, cells, &peers, deadline)?;
        let heap = Arc::new(heap);
        let queues = Queues {
            count: queues,
            // Others have contexts of their own, whose queues are not among these.
            gpus: (0..world)
                .map(|other| match other == rank {
                    true => heap.gpus()[0].ordinal(),
                    false => u32::MAX - other,
                })
                .collect(),
        };
        Ok(Group {
            sharing,
            order: Member::join(heap.gpus(), heap.streams()).map_err(tell)?,
            end: end.clone(),
            ledger: Book::Shared(Rings::new(board, world)),
            callers: Callers::default(),
            meeting: Meeting::new(world as usize),
            pool: Mutex::new(Pool::new(CONTROL, world)),
            timeout,
            queues,
            heap,
            peers: Some(peers),
            calling: Mutex::new(()),
            parts: Mutex::default(),
            reached: Some(at),
        })
    }
}

/// Objects that a rank has by itself once it knows the others.
struct Prepared {
    slots: Slots,
    stream: Stream,
    /// Number of hardware queues of its context.
    queues: u32,
    at: Reached,
}

impl Prepared {
    fn new(
        gpu: &Gpu,
        (number, control): &Numbered,
        all: &[Has],
        (rank, least): (u32, u64),
        limit: Duration,
    ) -> Result<Prepared, Error> {
        gpu.must_reach(all.iter().map(|has| &has.gpu))?;
        let world = all.len() as u32;
        let most = |of: fn(&Has) -> u64| all.iter().map(of).max().unwrap_or(0);
        let page = most(|has| has.gpu.page);
        let stride = most(|has| has.gpu.memory).max(least);
        Ok(Prepared {
            at: gpu.reach((*number, control), Board::for_kernels(world))?,
            slots: Slots::apart(gpu, (rank, world), stride, (page, all[0].gpu.handles))?,
            stream: gpu.stream()?.in_lane(lane(gpu, 0), limit),
            queues: gpu.queues()?,
        })
    }
}

/// A number that nobody else draws.
fn drawn() -> Result<u64, Error> {
    let mut number = [0; 8];
    number.copy_from_slice(&random()?[..8]);
    Ok(u64::from_le_bytes(number))
}

/// This process's own.
fn process() -> Result<u64, Error> {
    static OWN: OnceLock<u64> = OnceLock::new();
    let drawn = drawn()?;
    Ok(*OWN.get_or_init(|| drawn))
}

/// Gives this rank's part, if no rank was refused what it needs. All ranks hear of that at once.
fn all_can<T>(links: &mut Links, mine: Result<T, Error>, deadline: Deadline) -> Result<T, Error> {
    let said = mine.as_ref().map(|_| ()).map_err(told);
    let text = serde_json::to_vec(&said).unwrap_or_default();
    let all = links.share(text, Vec::new(), deadline)?;
    let mine = mine?;
    for (parcel, rank) in all.into_iter().zip(0..) {
        let said = serde_json::from_slice::<Result<(), (String, String)>>(&parcel.text);
        said.map_err(|_| misshared(rank))?
            .map_err(|why| refused(rank, why))?;
    }
    Ok(mine)
}

/// An error as others hear it, with what helps.
fn told(error: &Error) -> (String, String) {
    let help = error.help().unwrap_or_default().to_owned();
    (error.to_string(), help)
}

/// Error that names what another rank could not do.
fn refused(rank: u32, (what, help): (String, String)) -> Error {
    Error::Aborted {
        what: format!("rank {rank} ended early: {what}"),
        help,
    }
}

/// This rank's GPU, the memory that rank 0 hands out, and what each rank has.
///
/// # Errors
/// What this rank or another one could not do: all ranks hear of it at once.
fn introduced(
    open: impl FnOnce() -> Result<(Gpu, Handles), Error>,
    sharing: bool,
    links: &mut Links,
    deadline: Deadline,
) -> Result<(Gpu, Numbered, Vec<Has>), Error> {
    let bytes = Rings::bytes(links.world());
    let first = links.rank() == 0;
    let prepared = (|| {
        let (gpu, handles) = open()?;
        // Nobody else here gets these before it is known which of them serves.
        let unused = gpu.unused(bytes);
        let has = Has {
            gpu: gpu.about(handles)?,
            process: process()?,
            sharing,
            number: drawn()?,
            unused: unused.iter().map(|(number, _)| *number).collect(),
        };
        let board = first.then(|| Segment::create("counterflow control", bytes));
        Ok((gpu, has, unused, board.transpose()?))
    })();
    let (prepared, fd) = match prepared {
        Ok((gpu, has, unused, board)) => {
            let (board, fd) = board.unzip();
            (Ok((gpu, has, unused, board)), fd)
        }
        Err(error) => (Err(error), None),
    };
    let said = prepared.as_ref().map(|(_, has, ..)| has.clone());
    let said = said.map_err(told);
    let text = serde_json::to_vec(&Introduction { has: said }).unwrap_or_default();
    let all = links.share(text, fd.into_iter().collect(), deadline)?;
    let (gpu, _, unused, board) = prepared?;
    let mut offered = None;
    let mut each = Vec::new();
    for (parcel, rank) in all.into_iter().zip(0..) {
        let said = serde_json::from_slice::<Introduction>(&parcel.text);
        let said = said.map_err(|_| misshared(rank))?;
        let has = said.has.map_err(|why| refused(rank, why))?;
        each.push(has);
        if rank == 0 {
            offered = parcel.fds.into_iter().next();
        }
    }
    // What one rank cannot map, all hear of.
    let control = all_can(links, taken(board, offered, bytes), deadline)?;
    let before = serves_again(&each).and_then(|number| {
        let mut unused = unused.into_iter();
        unused.find(|(known, _)| *known == number)
    });
    let Some((number, control)) = before else {
        return Ok((gpu, (each[0].number, control), each));
    };
    if first {
        // Before it says that it has all it needs. Nobody looks there until all have.
        control.clear();
    }
    Ok((gpu, (number, control), each))
}

/// The memory that rank 0 hands out: its own, or of that file descriptor.
fn taken(
    own: Option<Segment>,
    offered: Option<OwnedFd>,
    bytes: u64,
) -> Result<Arc<Segment>, Error> {
    let segment = match own {
        Some(own) => own,
        None => Segment::of(&offered.ok_or_else(|| not_offered(0))?, bytes)?,
    };
    Ok(Arc::new(segment))
}

/// The number of memory that all ranks have from before, and that none of them uses. As many ranks had it, so nobody else
/// does. All ranks find the same.
fn serves_again(all: &[Has]) -> Option<u64> {
    let in_all = |number: &&u64| all.iter().all(|has| has.unused.contains(number));
    all.first()?.unused.iter().filter(in_all).min().copied()
}

/// Rejects ranks whose GPUs do not go together. All ranks find the same.
fn must_fit(all: &[Has]) -> Result<(), Error> {
    for (has, rank) in all.iter().zip(0..) {
        let emulated = |has: &Has| has.gpu.uuid.is_none();
        if emulated(has) != emulated(&all[0]) {
            let kind = |has| {
                if emulated(has) {
                    "an emulated"
                } else {
                    "a CUDA"
                }
            };
            return Err(Error::Mismatch {
                what: format!(
                    "rank 0 has {} GPU, and rank {rank} has {} one",
                    kind(&all[0]),
                    kind(has)
                ),
                help: "make the same call in all processes".into(),
            });
        }
        if has.gpu.handles != all[0].gpu.handles {
            let [first, other] = [&all[0], has].map(|has| has.gpu.handles.told());
            return Err(Error::Mismatch {
                what: format!("rank 0 hands memory over by {first}, and rank {rank} by {other}"),
                help: "set COUNTERFLOW_HANDLES to the same in all processes, or nowhere".into(),
            });
        }
        let same = |(other, _): &(&Has, u32)| other.gpu.uuid == has.gpu.uuid;
        let before = all.iter().zip(0..rank).filter(|_| !emulated(has));
        let Some((other, before)) = before.into_iter().find(same) else {
            continue;
        };
        let uuid = has.gpu.uuid.as_deref().unwrap_or_default();
        let what = format!("ranks {before} and {rank} on one GPU ({uuid})");
        if other.process == has.process {
            return Err(Error::Usage {
                what: format!("{what}, in one process"),
                legal: "ranks of one process that share a GPU: `Communicator::on`".into(),
            });
        }
        if !(other.sharing && has.sharing) {
            return Err(Error::Usage {
                what,
                legal: "as many processes as there are GPUs; or say that they share: `from_env_sharing`, `join_sharing`"
                    .into(),
            });
        }
    }
    Ok(())
}

/// True if two ranks have one GPU.
fn shared(all: &[Has]) -> bool {
    let uuids = all.iter().filter_map(|has| has.gpu.uuid.as_deref());
    let mut each = uuids.clone().zip(1..);
    each.any(|(uuid, next)| uuids.clone().skip(next).any(|other| other == uuid))
}

/// A process did not hand over what it should.
fn misshared(rank: u32) -> Error {
    Error::Mismatch {
        what: format!("rank {rank} does not share its memory as this version does"),
        help: "run one version of counterflow in all processes".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{self, Machine};
    use crate::rendezvous::Threads;
    use std::time::Duration;

    fn has(uuid: Option<&str>, process: u64, sharing: bool) -> Has {
        Has {
            gpu: About {
                uuid: uuid.map(str::to_owned),
                memory: 1,
                page: 1,
                handles: Handles::Files,
            },
            process,
            sharing,
            number: 0,
            unused: Vec::new(),
        }
    }

    #[test]
    fn all_ranks_use_the_same_handles() {
        let mut all = [has(Some("a"), 0, false), has(Some("b"), 1, false)];
        assert!(must_fit(&all).is_ok());
        all[1].gpu.handles = Handles::Fabric;
        let refused = must_fit(&all).expect_err("they differ").to_string();
        assert_eq!(
            refused,
            "rank 0 hands memory over by file descriptors, and rank 1 by fabric handles"
        );
    }

    #[test]
    fn what_one_rank_is_refused_all_hear_at_once() {
        let limit = Duration::from_secs(60);
        std::thread::scope(|scope| {
            for seat in Threads::of(3) {
                scope.spawn(move || {
                    let deadline = Deadline::after(limit);
                    let mut links = Links::make(&seat, deadline).expect("connected");
                    let own = links.rank() == 1;
                    let mine = match own {
                        true => Err(misshared(7)),
                        false => Ok(()),
                    };
                    let error = all_can(&mut links, mine, deadline).expect_err("told");
                    let wanted = "rank 7 does not share its memory as this version does";
                    match own {
                        true => assert_eq!(error.to_string(), wanted),
                        false => {
                            assert_eq!(error.to_string(), format!("rank 1 ended early: {wanted}"));
                            let help = "run one version of counterflow in all processes";
                            assert_eq!(error.help(), Some(help));
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn memory_that_one_rank_cannot_map_all_hear_of() {
        let limit = Duration::from_secs(60);
        std::thread::scope(|scope| {
            for seat in Threads::of(3) {
                scope.spawn(move || {
                    let deadline = Deadline::after(limit);
                    let mut links = Links::make(&seat, deadline).expect("connected");
                    if links.rank() == 0 {
                        // It hands out no memory.
                        let has = has(None, 1, true);
                        let said = serde_json::to_vec(&Introduction { has: Ok(has) });
                        let said = said.expect("text");
                        links.share(said, Vec::new(), deadline).expect("shared");
                        let error = all_can(&mut links, Ok(()), deadline).expect_err("told");
                        let told = error.to_string();
                        assert!(
                            told.starts_with("rank 1 ended early: no file desc"),
                            "{told}"
                        );
                        return;
                    }
                    let machine = Machine::new(1, 0, u64::MAX);
                    let open = || Ok((emulated::Gpu::of(&machine, 0).into(), Handles::Files));
                    let error = introduced(open, true, &mut links, deadline).expect_err("none");
                    assert_eq!(error.kind(), "too_large", "{error}");
                });
            }
        });
    }

    #[test]
    fn memory_serves_again_that_all_ranks_have_and_none_uses() {
        let unused = |numbers: &[u64]| Has {
            unused: numbers.to_vec(),
            ..has(None, 1, true)
        };
        let all = [unused(&[9, 5, 7]), unused(&[7, 1, 5]), unused(&[5, 7])];
        assert_eq!(serves_again(&all), Some(5));
        assert_eq!(serves_again(&[unused(&[9]), unused(&[])]), None);
    }

    #[test]
    fn ranks_share_a_gpu_only_if_both_say_so_and_are_two_processes() {
        let told = |all: &[Has]| must_fit(all).map_err(|error| error.to_string());
        let one = |process, sharing| has(Some("GPU-1"), process, sharing);
        assert_eq!(told(&[one(1, false), has(Some("GPU-2"), 2, false)]), Ok(()));
        assert_eq!(told(&[one(1, true), one(2, true)]), Ok(()));
        assert_eq!(told(&[has(None, 1, false), has(None, 1, false)]), Ok(()));
        assert!(shared(&[
            has(Some("GPU-2"), 0, true),
            one(1, true),
            one(2, true)
        ]));
        assert!(!shared(&[
            one(1, true),
            has(None, 1, true),
            has(None, 2, true)
        ]));
        let shared = "ranks 0 and 1 on one GPU (GPU-1)";
        for both in [[one(1, false), one(2, true)], [one(1, true), one(2, false)]] {
            assert_eq!(told(&both), Err(shared.into()));
        }
        let within = told(&[one(1, true), one(1, true)]);
        assert_eq!(within, Err(format!("{shared}, in one process")));
        let mixed = told(&[one(1, true), has(None, 2, true)]).expect_err("mixed");
        assert!(mixed.starts_with("rank 0 has a CUDA GPU, and rank 1 has an emulated one"));
    }
}
